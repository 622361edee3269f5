//! The part that the NCCL backend and the RCCL backend share. Both libraries have the same C interface, which this
//! crate opens at run time. The crate has no code for CUDA or HIP: `disco-nccl` and `disco-rccl` implement [`Driver`]
//! and [`p2p::Peers`], and describe their library by a [`Vendor`].
//!
//! ```text
//! disco-nccl (CUDA)     disco-rccl (HIP)            each implements `Driver` and `Peers`, and names its library
//!         └─────────┬─────────┘
//! Backend ──► Library ──► Table                     the vendor's library, and its functions
//!     │ connect
//! Communicator ──► SharedComm ──► Blocking          one rank: launches, waits, splits and aborts
//!     │                 └──► teardown, siblings     the end of a communicator
//! Queue ──► Runtime ──► Driver                      one device with one stream, and the memory of its tensors
//! ```
//!
//! # Example
//! Searches for NCCL, and prints the features of the installed version:
//!
//! ```
//! use disco_ccl::{Library, Vendor};
//! use disco_core::{DType, OpKind, Reduction};
//!
//! let variable = "DISCO_NCCL_LIBRARY"; // names a file instead of the search
//! let candidates = &["libnccl.so.2"];
//! match Library::find(Vendor { backend: "nccl", library: "NCCL", variable, candidates, wheels: &[], remedy: "" }) {
//!     Ok(library) => {
//!         let averages = library.capabilities(false).supports(OpKind::AllReduce, DType::F32, Some(Reduction::Avg));
//!         println!("NCCL {} from {}; averages: {averages}", library.version(), library.file());
//!     }
//!     Err(unavailable) => println!("{unavailable}"), // lists each candidate and the reason why it was rejected
//! }
//! ```
//!
//! # Waits
//! Each wait ends at its deadline or at an abort. From NCCL 2.22.3 on, communicators are blocking, because each launch
//! on a non-blocking communicator starts a thread; the module `blocking` interrupts their calls. From 2.14 to 2.22.2,
//! communicators are non-blocking, and a wait is a polling loop.
//!
//! # Where to look next
//! ```text
//! abi             types, codes and constants of the C interface
//! config          the configuration of a communicator, as the library reads it
//! table           the functions, with the versions that added them
//! backend         a vendor's backend, as the registry has it
//! library         search, minimum version, capabilities, and the texts of errors
//! driver          the functions of the vendor's device library (CUDA, HIP)
//! runtime         one device with one stream: memory of tensors, captures, graphs, teardown threads
//!   heap          device memory of tensors
//!   pool          pools of device memory in the driver
//!   pinned        pinned host memory
//!   pinned_claims claims of pinned host tensors during their copies
//!   event         events by which the host sees how far a stream is
//!   device        the devices of this process
//!   queue         a worker's stream and its events
//!   reaper        the thread that frees memory once the device is done with it
//!   staging       copies from and to the host
//! communicator    one rank: launches, waits, splits, failure
//!   extension     the functions of NCCL and RCCL that other backends lack
//!   collective    operations mapped to functions of the library
//!   premul        sums of inputs that each rank scales first
//!   capture_check operations that a capture refuses
//!   connect       how ranks get their communicator
//!   init          how the library creates a communicator
//!   meeting       exchanges between ranks through the session's store
//!   shared_comm   the library's communicator, shared by its rank and the threads that abort it
//!   blocking      calls that block in the library, and their interruption
//!   polling       polling loops
//!   owned         the library's communicator, with the guards that are dropped after it
//!   memory        device memory that the library allocates
//!   registration  memory that is registered with a communicator
//!   teardown      the end of a communicator
//!   siblings      the ranks of one communicator in this process
//! p2p             memory that ranks of one machine share
//! ```

#![doc(html_root_url = "https://docs.rs/disco-ccl/latest")]

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
mod event;
mod extension;
mod heap;
mod init;
mod library;
mod meeting;
mod memory;
mod owned;
pub mod p2p;
mod pinned;
mod pinned_claims;
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
pub use driver::{CopyKind, Driver, EventHandle, GraphFunctions, TimingFunctions};
pub use extension::{Extension, extension};
pub use heap::MemoryUse;
pub use library::{Library, Vendor, Version};
pub use pinned::Pinned;
pub use pool::PoolFunctions;
pub use queue::Queue;
pub use runtime::{Graph, Runtime};
pub use table::Table;
