//! Memory that ranks of one machine share, and the operations that use it instead of the vendor's library.
//!
//! ```text
//! topology             links between devices, and the shapes that kernels are written for
//! decision             the shape of a group of devices with the reasons, or the shape that a test forces
//! survey               all devices of one kind on this machine
//! rendezvous           how ranks agree to share memory, and exchange its handles
//! workspace            the shared memory: a buffer of each rank
//!   memory_descriptor  the description of a rank's memory for its peers
//!   memory             layout, addresses and end of the shared memory
//!   self_test          checks that ranks can access each other's memory
//!   stream             copies and signals by streams
//!   signals            counters of signals, and work that streams have not passed
//!   word_table         separate memory for signal words, where the driver needs it
//! fast_path            operations of a communicator over the shared memory
//!   options            environment variables
//! backend              a vendor's backend with peer-to-peer memory
//! ```
//!
//! This module calls no vendor's library: each vendor's crate queries the links of its devices and passes them in.
//!
//! # Invariants
//! - `cuda_p2p` is NCCL's communicator with a *fast path* (`P2pFastPath`): a single operation goes to the fast path
//!   if it has a kernel for it, otherwise to NCCL. Deadlines, aborts and reports are the communicator's. The choice
//!   is the same on all ranks: it depends on kind, dtype, size, and the ranks' agreement at the meeting (buffer,
//!   topology, thresholds, number of blocks). Only the alignment of a tensor differs between ranks; one that does not
//!   start at 16 bytes is copied first.
//! - Ranks meet in the session's store, in steps that all ranks take, with one deadline. If a rank can't take part,
//!   it reports so, and no rank shares memory, for the same reason. Each mapping is written to and read back before
//!   use. The streams of all ranks signal each other, and each rank tests whether the host can end its streams'
//!   waits, while its peers stand by to end them. Groups meet on their own, so groups of one machine share memory
//!   also if the world spans several machines.
//! - A rank's memory is one allocation: state of the kernels, words for signals, the users' buffer, the kernels'
//!   buffer. Peers of the same process use its address, others open it (`cuIpcOpenMemHandle`). It is freed in the
//!   background when its streams are done and all peers have closed it, in any order of their ends. With HIP it is
//!   fine-grained: a wait is a kernel, and HIP does not promise that a running kernel sees peers' writes to other
//!   memory. HIP documents waits in signal memory only (8 bytes for each allocation, in one process); most versions
//!   accept other memory unless `GPU_STREAMOPS_CP_WAIT=1`. Each rank tries a wait in its shared memory, and allocates
//!   its words one by one if HIP refuses.
//! - The host counts signals: the n-th wait is for the n-th signal, by a comparison that may wrap; therefore captures
//!   refuse signals. Kernels count their handshakes in device memory, so each launch of a graph continues the count.
//!   At the deadline of a wait, its own rank writes the word, until no stream waits. Ordinary streams share hardware
//!   queues, in which a wait delays later work, so the rank writes on a stream of the highest priority, which is made
//!   before the first wait.
//! - A stream does not report that a kernel gave up, or for which peer it waits. So code that waits for a stream (a
//!   collective, a queue) asks the owner of the kernels and signals (`WorkMonitor` in `runtime/stream.rs`). Device
//!   memory is freed only when the side stream is done, too.
//! - Kernels limit their waits for peers by a clock of their own, and check a word that an abort sets. The first
//!   failed wait names the missing peer; from then on the rank's launches do not touch shared memory.

mod backend;
mod decision;
mod fast_path;
mod memory;
mod memory_descriptor;
mod options;
mod rendezvous;
mod self_test;
mod signals;
mod stream;
mod survey;
mod topology;
mod word_table;
mod workspace;

pub use backend::Backend;
pub use decision::Decision;
pub use fast_path::{Kernels, P2pFastPath, Preparation, Prepared, Unfit, Vendor};
pub use memory::STATE_BYTES;
pub use options::{bytes_of, shares_devices};
pub use rendezvous::{Consensus, Introduction, Offer, Rendezvous};
pub use signals::SLOTS;
pub use stream::P2pStream;
pub use survey::{Site, Survey, host};
pub use topology::{Ends, Mesh, RANKS, Topology};
pub use workspace::{DEFAULT_BUFFER_BYTES, MeetOutcome, Workspace};

pub use crate::driver::{BusId, IpcHandleBytes, Peers, WORD_BYTES};
