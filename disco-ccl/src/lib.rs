//! What NCCL and RCCL share: one C interface, opened at run time.
//!
//! ```text
//! abi           types, codes and constants of the interface
//! config        how a communicator is to be made, as the library reads it
//! table         the functions, and since which version they are there
//! backend       a vendor's backend as the registry has it
//! library       the search, the gate, what its version can do, the text of errors
//! driver        what is asked of the vendor's device library
//! runtime       one device with one stream on it, the memory of tensors there, captured work
//!   heap          the device memory of tensors
//!   pool          the driver's pools of device memory
//!   pinned        pinned host memory, and how long it stays
//!   device        which devices there are
//!   queue         a worker's stream, and marks in it
//!   reaper        the thread that frees memory when the device is done with it
//!   staging       copies from and to the host
//! communicator  one rank: launches, waits, splits, breaks
//!   extension     what programs ask of one beside the common contract
//!   collective    operations as calls of the library
//!   premul        sums of inputs that are multiplied first
//!   capture_check which operations a capture refuses
//!   connect       how ranks get their communicator
//!   init          how the library makes one
//!   meeting       what ranks tell each other beside the library
//!   handle        the library's communicator between its rank and whoever aborts it
//!   blocking      calls that wait inside the library, and what interrupts them
//!   patience      waiting
//!   owned         that communicator, with what ends after it
//!   memory        device memory of the library's own
//!   registration  memory that is registered with a communicator
//!   teardown      the end of a communicator
//!   siblings      its ranks in this process, and when they have all ended
//! p2p           what devices of one machine are to each other
//! ```
//!
//! Deadlines and aborts end every wait. Communicators are blocking since 2.22.3, where launches on others cost a thread each; from 2.14
//! to 2.22 they are non-blocking, and each wait is a polling loop.
//!
//! Nothing here knows CUDA or HIP: who opens a [`Library`] says what it is called and where to look ([`Vendor`]).

pub mod abi;
mod backend;
mod blocking;
mod capture_check;
mod collective;
mod communicator;
mod config;
mod connect;
mod device;
mod driver;
mod extension;
mod heap;
mod init;
mod library;
mod meeting;
mod memory;
mod owned;
pub mod p2p;
mod pinned;
mod polling;
mod pool;
mod premul;
mod queue;
mod reaper;
mod registration;
mod runtime;
mod shared_comm;
mod siblings;
mod staging;
mod table;
mod teardown;

pub use backend::{Backend, Details};
pub use communicator::Communicator;
pub use config::Config;
pub use device::{bind, details};
pub use driver::{CopyKind, Driver, EventHandle, GraphFunctions};
pub use extension::{Extension, extension};
pub use heap::MemoryUse;
pub use library::{Library, Vendor, Version};
pub use pinned::Pinned;
pub use pool::PoolFunctions;
pub use queue::Queue;
pub use runtime::{Graph, Runtime};
pub use table::Table;
