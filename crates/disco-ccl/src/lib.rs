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
//! # Where to look next
//! ```text
//! abi             types, codes and constants of the C interface
//! config          the configuration of a communicator, as the library reads it
//! table           the functions, with the versions that added them
//! backend         a vendor's backend, as the registry has it
//! library         search, minimum version, capabilities, and the texts of errors
//! driver_table    tables of functions that have the same signatures in CUDA and HIP
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
//!
//! # Invariants
//! - Deadline and abort end every wait of a rank. How a launch waits depends on the library's version (`init.rs`):
//!   - From 2.22.3 on, communicators are blocking, because with non-blocking ones of two or more ranks the library
//!     starts a thread for each launch (50 to 60 µs by measurements of others). A launch that first has to reach a
//!     peer waits inside the library, and so does connecting. An abort interrupts such a call. A watchdog thread of
//!     each communicator and its splits interrupts a call that takes longer than the deadline (`blocking.rs`): it
//!     calls `ncclCommAbort` in a group, which sets the flags that end calls and kernels, and ends the group, which
//!     frees the communicator, when the rank has left its call.
//!   - From 2.14 to 2.22, communicators are non-blocking: each wait polls the communicator and the stream.
//!   - Before 2.14, connecting waits on a thread of its own, which is left behind at the deadline. A launch that
//!     first has to reach a peer can wait inside the library; then the controller's deadline names the rank.
//! - A call of the library holds the communicator's lock for that one call. The end of a communicator takes the
//!   communicator out under the lock and then calls the library, on a thread that may be left behind.
//! - `ncclCommAbort` returns at once for all ranks of a process but the last, and a rank's kernel ends some time
//!   after it. Until the kernels of all ranks have ended, they may write to each other's tensors: after an abort a
//!   rank allocates no memory before that (it waits for at most 5 s), and registered memory is kept (`siblings.rs`).
//!   Tensors that a program keeps across an abort may be written to until then.
//! - One group of operations is one group of the library's, except for collectives of which one needs another's
//!   result: a group of the library has no order.
//! - Operations without arithmetic move bytes, so they support every dtype.
//! - A stream of the program never becomes the stream of a worker. The worker's stream is polled, freed on and
//!   drained after an abort, and a program's stream may be a default stream, which NCCL's own threads can't name.
//!   Fences order the two by events (`disco-nccl/src/cuda/fence.rs`). Memory of the program is given back to it only
//!   when no storage has it; after an error only when the streams are idle and no aborted rank may write to it
//!   (`disco-nccl/src/cuda/lend.rs`), else it is replaced and freed later.
//! - A worker has one stream. The driver's plain free (`cuMemFree`, `cuMemFreeHost`) waits for all work of the device
//!   and of its peers, and so perhaps for a collective that waits for this rank. Therefore tensors come from a memory
//!   pool of the driver, one for each stream, whose frees are work of the stream (`heap.rs`). Peers' devices have
//!   access to the pool, because NCCL lets ranks of one process read each other's buffers. If a driver lacks pools,
//!   blocks are kept by size class. The pool's release threshold is 1 GiB; `Runtime::memory` returns the reserved and
//!   the used bytes, and only `Runtime::trim` returns unused memory to the driver.
//! - Pinned memory is freed when the process has no communicator and no shared memory (`pinned.rs`). Plain device
//!   memory is used only for exported memory, and is freed in the background. Pinned memory, blocks of the library's
//!   allocator (`ncclMemAlloc`) and of a heap without a pool are freed by one thread of the process once their stream
//!   is done (`reaper.rs`). The same thread drops the buffers and the claims of a dropped queue, so the drop does not
//!   wait.
//! - The driver's copies of ordinary host memory may wait for the stream, so Disco copies through chunks of pinned
//!   memory (`staging`). A copy to the host is complete after `Queue::synchronize`. One thread fills chunks more
//!   slowly than a link copies them, so up to 8 threads run a copy of 4 MiB or more. They are started for each copy,
//!   because a copy must not wait for a thread pool that runs tasks of the program. A stream that waits for a peer
//!   blocks none of them: the host allocates more chunks instead. A stream keeps at most 20 MiB of chunks.
//! - Copies of tensors in pinned memory are copies of the driver. The borrow flag of their storage makes them safe
//!   (`pinned_claims.rs`). The owner of a storage, whose type is private, marks its memory as pinned.
//! - Disco (`Runtime::capture`, `runtime/{capture,graph}.rs`) or the program captures work of a worker's stream as a
//!   graph. A query of the stream or of an event would end the capture. Therefore polls from other threads count a
//!   stream under capture as busy, and memory of dropped tensors is kept during a capture. Operations that need the
//!   host or new memory are refused before a launch, so neither the capture nor the communicator breaks. A graph
//!   keeps the tensors, the scratch memory and the shared memory of its operations.
//! - NCCL ends a communicator, even by an abort, only after its graphs are destroyed. Therefore the executable form
//!   of a graph is in a slot that the graph and its communicators share, and a handle ends its communicator only
//!   after it has taken the executables. A separate thread destroys them while `ncclCommAbort` runs, because only the
//!   abort ends a `cuGraphLaunch` that blocks behind a hanging collective. No lock is held during a launch by the
//!   driver. In reports of missing ranks, a launch counts as an operation.
//! - With a timeline, an event before and one behind each launch measure the operation on the device. Only the
//!   worker's thread reads events, because only it writes its records; it never waits for an operation's event. No
//!   event is recorded or queried during a capture. A failed event ends the measurements, not the operation.
//! - Two ranks on one device are refused before a call of the library, unless `DISCO_SHARE_DEVICES=1` is set and the
//!   library accepts them. The ranks compare device names in the session's store, where missing ranks are detected,
//!   too.
//! - The topology of GPUs is derived from a mesh of link counts, without a vendor's library (`p2p`). A link counts if
//!   both ends report it as up; an unknown link counts as absent, and the decision keeps the reason.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests compare texts"))]
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
mod driver_table;
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
