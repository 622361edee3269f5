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
