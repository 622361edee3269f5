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
//! member         the communicator of a worker: operations on its thread, or beside it
//! communicator   one rank: waits with deadline and abort (`flag`); splits (`split`)
//! collective     operations as calls of MPI, on byte ranges (`span`); `raw`: the same calls for the benchmark
//! reduction      reductions of dtypes that the library supports, and of others in wider numbers (`numbers`)
//! ```
//!
//! Operations are non-blocking calls that the rank polls, so that a lost peer causes an error instead of a hang. With
//! `DISCO_MPI_BLOCKING=1` they are blocking calls without deadline and abort, and only the launcher ends a hang.
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
//!
//! # Invariants
//! - A process is one rank, because MPI has one in a process: worker 0 is rank 0, in the controller's process. Under a
//!   launcher, a worker 0 that is a process of its own is rank 1. MPI's world is made by a launcher, or without one by a process manager in each rank (`pmi.rs`): it
//!   speaks PMI-1 with its rank, and keeps values and barriers in the session's store, so ranks may be processes of
//!   several machines. Each `init_ccl` makes a communicator of its first ranks, after all of them have reported in
//!   the session's store that they are ready, because neither initialising MPI nor making a communicator can be
//!   cancelled.
//! - Calls are non-blocking MPI calls, polled until they are complete; each poll checks the abort flag and the
//!   deadline. MPI can't cancel unfinished requests: their memory is kept for ever, and so is the communicator.
//! - `MPI_Comm_split` can't be polled: ranks pass a barrier before it, and a rank that gives the barrier up still makes the
//!   call if the others pass it (`split.rs`).
//! - Under a launcher, ranks first exchange the identity of their machine: boot, network and process namespaces, host
//!   name. For each session, rank 0 sends the other ranks a message of 512 bytes over MPI. On one machine the message
//!   is an invitation, and the lane between the ranks is a process lane. On several machines, or for
//!   `Builder::nodes`, it has a token of this session and the address of rank 0: on one machine the loopback; on
//!   several the host name and the addresses of all interfaces, which a rank tries one after the other. The lane is
//!   then a node lane: each rank is a node with one worker, a thread. On one machine, the session's world has as many
//!   nodes as the program asks for; on several, one node for each machine if the ranks are on the machines in equal
//!   blocks, otherwise one for each rank. At rank 0's `MPI_Finalize`, Disco's own at exit or the program's, the other
//!   ranks leave first.
//! - A lost rank keeps the others from finalising MPI: they exit without it after 5 s if a collective was left
//!   unfinished, otherwise after 30 s.
//! - Reductions are MPI's where test computations, made once, agree with Rust's wrapping integers. Otherwise, and for
//!   dtypes that MPI lacks, elements are converted to wider ones.

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
mod member;
mod numbers;
mod pmi;
mod reduction;
mod span;
mod split;
mod table;

pub use backend::{BACKEND, Mpi};
pub use connect::connect_comm;
pub use host::Host;
pub use invitation::{NodeInvitation, SessionInvitation};
pub use launcher::{is_launched, launcher, launcher_of_sessions};

/// The name of the backend.
pub(crate) const NAME: &str = "mpi";
