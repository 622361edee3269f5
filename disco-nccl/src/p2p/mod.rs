//! Ranks of one machine whose GPUs read and write each other's memory.
//!
//! ```text
//! kernels   sums over them, and barriers: the source, its compilation, which one to launch and how
//! ```

pub mod kernels;
