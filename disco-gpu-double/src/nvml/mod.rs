//! NVML: what a machine's GPUs are linked to.
//!
//! ```text
//! abi       types and codes of the interface
//! machine   kinds of machines, and where each GPU's links end
//! library   starts and ends, and handles of GPUs
//! exports   the C functions
//! ```

pub mod abi;
pub mod exports;
pub(crate) mod library;
pub(crate) mod machine;
