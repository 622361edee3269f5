//! Collectives, layers and weights on several ranks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods, reason = "tests")]

mod parallel;
mod weights;
