//! Communicators whose ranks are in several processes. The process that has made the unique id is the *host* of the
//! communicator: its [`Clique`](super::clique::Clique) has all ranks. A rank of another process has a connection to the
//! host, over which it sends requests. A local clique stores the host's replies until the rank reads them. In the host,
//! a proxy represents the rank: its threads do the work of the rank's threads, on the rank's memory, which they open as
//! CUDA opens inter-process handles. Communicators that are split off have the same host; for each of them a rank has
//! another connection.
//!
//! ```text
//! rank's process                 host
//! Comm ─▶ Clique ─▶ link ═══════ host ─▶ proxy ─▶ Comm ─▶ Clique of all ranks
//!                    requests ▶          ◀ replies
//!
//! wire        messages of a connection, as JSON
//! message     requests and replies
//! call        one call of a communication function, with memory that another process can open
//! link        the connection of a rank, in the rank's process
//! host        connections that a process accepts
//! proxy       a rank of another process, in the host
//! exit        the wait of a host for its connections at exit
//! ```
//!
//! The end of a connection means that the other process has ended. To the host it is an abort by that rank, unless the
//! rank has left the communicator before. To a rank it is an abort by all ranks of the host.

mod call;
mod exit;
pub(crate) mod host;
pub(crate) mod link;
mod message;
mod proxy;
mod wire;
