//! HIP's runtime: a second interface to the devices, memory, streams and events of [`cuda`](crate::cuda).
//!
//! ```text
//! abi      types and codes of the interface
//! current  the current device of a thread
//! last     the last error of a thread
//! exports  the C functions
//! ```

pub mod abi;
pub(crate) mod current;
pub mod exports;
pub(crate) mod last;
