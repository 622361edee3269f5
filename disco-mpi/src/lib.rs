//! The backend `mpi`: host tensors over whatever MPI the machine has, found at run time.
//!
//! No headers, no `mpicc`: the library is opened when it is first asked for, its ABI is told by what it exports, and one
//! communicator, generic over that ABI, serves Open MPI, the MPICH family and the standard ABI of MPI 5.
//!
//! ```text
//! backend        probe, rendezvous, connect
//! library        the search; what the library is called, its version, initialisation, the text of its errors
//! abi, table     handles and constants of three ABIs; the functions
//! connect        ranks initialise MPI, meet, and make a communicator; pmi serves those without a launcher
//! launcher       the command that starts ranks, and what a rank knows of it
//! host           ranks of a launcher, invited to one session after the other: letter is what they are told, machine where they are
//! communicator   one rank: waiting with deadline and abort, splitting; flag is what ends its waits
//! collective     an operation as MPI's (raw: as the benchmark calls it), on spans of bytes
//! reduction      of numbers that the library knows and of others, which go as wider numbers
//! ```
//!
//! Ranks are processes: MPI has one in each. Every operation is non-blocking and polled, so that a peer that is gone is an
//! error and not a hang; with `DISCO_MPI_BLOCKING=1` it blocks, and the launcher alone ends what hangs.

mod abi;
mod backend;
mod collective;
mod communicator;
mod connect;
mod flag;
mod host;
mod invitation;
mod launcher;
mod library;
mod machine;
mod numbers;
mod pmi;
#[doc(hidden)]
pub mod raw;
mod reduction;
mod span;
mod table;

pub use backend::{BACKEND, Mpi};
pub use connect::connect_comm;
pub use host::Host;
pub use invitation::{NodeInvitation, SessionInvitation};
pub use launcher::{is_launched, launcher};

/// The name of the backend.
pub(crate) const NAME: &str = "mpi";
