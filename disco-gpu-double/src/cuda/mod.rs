//! The CUDA driver: devices that are threads, memory that is the host's.
//!
//! ```text
//! abi       types and codes of the interface
//! device    devices, their contexts, which one a thread has, the error that stays
//! memory    allocations, and which of them an address is in
//! pinned    host memory of the driver's
//! stream    queues of work, each served by a thread of its own
//! event     marks in a stream that others wait for
//! copy      copies and fills, as work of a stream
//! identity  what tells a device from the others
//! exports   the C functions
//! ```

pub mod abi;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub mod exports;
pub(crate) mod identity;
pub(crate) mod memory;
pub(crate) mod pinned;
pub(crate) mod stream;
