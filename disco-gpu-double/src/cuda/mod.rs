//! The CUDA driver: devices that are threads, memory that is the host's.
//!
//! ```text
//! abi       types and codes of the interface
//! device    devices, their contexts, which one a thread has, the error that stays
//! memory    allocations, and which of them an address is in
//! arena     where they lie, in files that other processes may open
//! ipc       allocations of other processes
//! location  where other processes find bytes of an allocation
//! peer      which devices have access to which others' memory
//! pool      memory that is allocated and freed in the order of a stream
//! pinned    host memory of the driver's
//! stream    queues of work, each served by a thread of its own
//! capture   streams whose work becomes nodes of a graph
//! graph     captured nodes, and their launches
//! hardware  queues that streams share, and what holds up a queue
//! event     marks in a stream that others wait for
//! word      words of memory that streams write, and wait for
//! module    modules, and the functions in them
//! kernel    what functions do when they are launched
//! copy      copies and fills, as work of a stream
//! identity  what tells a device from the others
//! exports   the C functions
//! ```

pub mod abi;
pub(crate) mod arena;
pub(crate) mod capture;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub mod exports;
pub(crate) mod graph;
pub(crate) mod hardware;
pub(crate) mod identity;
pub(crate) mod ipc;
pub mod kernel;
pub(crate) mod location;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod peer;
pub(crate) mod pinned;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod word;
