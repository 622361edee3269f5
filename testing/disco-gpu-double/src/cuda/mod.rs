//! The CUDA driver: streams are threads, and device memory is host memory.
//!
//! ```text
//! abi        types and codes of the interface
//! device     devices, their contexts, the current device of a thread, sticky errors
//! memory     allocations, and the lookup of addresses
//! arena      the memory of a device: a file that other processes may open
//! ipc        allocations of other processes
//! location   locations of memory, for other processes
//! peer       access of devices to the memory of other devices
//! pool       memory pools, whose frees are ordered by a stream
//! pinned     pinned host memory
//! stream     queues of work, each with its own thread
//! per_thread the default streams of threads
//! capture    stream captures
//! graph      captured nodes, and their launches
//! graph_memory  memory that a graph allocates and frees
//! hardware   hardware queues that streams share
//! event      events: points in streams, and waits for them
//! word       words of memory that streams write and wait for
//! module     modules, and the functions in them
//! kernel     Disco's kernels, for the host
//! copy       copies and fills, as work of a stream
//! identity   names, UUIDs and bus ids of devices
//! exports    the C functions
//! ```

pub mod abi;
pub(crate) mod arena;
pub(crate) mod capture;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub mod exports;
pub(crate) mod graph;
pub(crate) mod graph_memory;
pub(crate) mod hardware;
pub(crate) mod identity;
pub(crate) mod ipc;
pub mod kernel;
pub(crate) mod location;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod peer;
mod per_thread;
pub(crate) mod pinned;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod word;
