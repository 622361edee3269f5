//! Sharded weights.
