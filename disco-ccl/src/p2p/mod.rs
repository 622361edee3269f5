//! What devices of one machine are to each other: whether kernels of our own can reach their peers' memory.
//!
//! ```text
//! topology    links between devices, and the shapes that kernels are written for
//! decision    which shape a group has, and why; what a test wants instead
//! survey      all devices of a kind on this machine
//! rendezvous  how ranks agree on it, and hand each other handles of their memory
//! workspace   that memory: a buffer of each rank
//!   card      what a rank tells its peers of its own
//!   memory    where each rank's starts, and how it ends
//!   self_test     whether ranks reach each other
//!   lane      copies and signals by streams
//!   words     what was signalled, and what streams have not passed
//!   word_table  where words are, if not in that memory
//! fast_path    what a communicator does over it, without its library
//!   options   what users say of it
//! backend     a vendor's backend that has such
//! ```
//!
//! No vendor's library is asked here: each vendor's crate walks its links and hands in where they end.

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
pub use options::{OFF_REASON, bytes_of, is_off, shares_devices};
pub use rendezvous::{Consensus, Introduction, Offer, Rendezvous};
pub use signals::SLOTS;
pub use stream::P2pStream;
pub use survey::{Site, Survey, host};
pub use topology::{Ends, Mesh, RANKS, Topology};
pub use workspace::{DEFAULT_BUFFER_BYTES, MeetOutcome, Workspace};

pub use crate::driver::{BusId, IpcHandleBytes, Peers, WORD_BYTES};
