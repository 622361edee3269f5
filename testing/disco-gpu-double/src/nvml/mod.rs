//! NVML: the links between the GPUs of a machine.
//!
//! ```text
//! abi       types and codes of the interface
//! machine   the remote ends of links, for each kind of machine
//! library   initialisation and shutdown, and handles of GPUs
//! exports   the C functions
//! ```

pub mod abi;
pub mod exports;
pub(crate) mod library;
pub(crate) mod machine;
