//! The backend `mpi`: host tensors over the MPI library of the machine, which is opened at run time.
//!
//! The crate needs no headers and no `mpicc`. It opens the library at its first use and recognises the ABI by the
//! exported symbols. One communicator, generic over the ABI, serves Open MPI, the MPICH family and the standard ABI of
//! MPI 5.
//!
//! ```text
//! backend        probe, rendezvous, connect
//! library        search for the library; its name, version, initialisation and error texts
//! abi, table     handles and constants of three ABIs; the functions
//! connect        ranks initialise MPI, meet, and make a communicator; `pmi`: process manager of ranks without a launcher
//! launcher       the command that starts ranks, and its variables in the environment of a rank
//! host           ranks that a launcher has started, which serve sessions: `invitation`, `machine`
//! communicator   one rank: waits with deadline and abort (`flag`), splits
//! collective     operations as calls of MPI, on byte ranges (`span`); `raw`: the same calls for the benchmark
//! reduction      reductions of dtypes that the library supports, and of others in wider numbers (`numbers`)
//! ```
//!
//! Each rank is a process, because MPI has one rank in a process. Operations are non-blocking calls that the rank
//! polls, so that a lost peer causes an error instead of a hang. With `DISCO_MPI_BLOCKING=1` they are blocking calls
//! without deadline and abort, and only the launcher ends a hang.
//!
//! Programs select the backend by name. A missing library is an error that lists the tried paths:
//!
//! ```
//! use disco_core::backend;
//! use disco_mpi as _;
//!
//! match backend::find("mpi")?.probe() {
//!     Ok(found) => println!("{} from {}", found.version, found.library),
//!     Err(missing) => println!("{missing}"),
//! }
//! # Ok::<(), disco_core::Error>(())
//! ```
//!
//! [`connect_comm`] makes a communicator of an `MPI_Comm` that the program already has.

#![doc(html_root_url = "https://docs.rs/disco-mpi/latest")]

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
pub use launcher::{is_launched, launcher, launcher_of_sessions};

/// The name of the backend.
pub(crate) const NAME: &str = "mpi";
