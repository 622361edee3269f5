//! HIP's runtime: another way to the devices, memory, streams and events that [`cuda`](crate::cuda) has.
//!
//! ```text
//! abi      types and codes of the interface
//! current  which device a thread has, without its asking for one
//! last     what a thread's calls failed with last
//! exports  the C functions
//! ```

pub mod abi;
pub(crate) mod current;
pub mod exports;
pub(crate) mod last;
