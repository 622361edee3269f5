//! Communicators whose ranks are in several processes.
//!
//! The process that has made the unique id is the host of the communicator: its [`Clique`](super::clique::Clique) has all ranks. A rank
//! of another process has a connection to the host, over which it sends what its clique would be told, and a clique of its own, in
//! which it waits for the answers. In the host a proxy takes the rank's place: threads that do what the rank's own threads would do
//! in one process, on memory of the rank that they open as CUDA's inter-process handles do. Communicators that are split off have the
//! same host, and each rank has one more connection for each.
//!
//! ```text
//! wire        frames of a connection, and the words in them
//! message     what the two sides send each other
//! call        one call of a communication function, with memory that another process can open
//! link        the connection of a rank, in the rank's process
//! host        connections that a process accepts
//! proxy       a rank of another process, in the host
//! exit        a host that ends waits for its connections
//! ```
//!
//! A connection that ends tells the other side that the process has ended, however it did. For the host, the rank has aborted the
//! communicator then, unless it had left before. For a rank, all ranks of the host have.

mod call;
mod exit;
pub(crate) mod host;
pub(crate) mod link;
mod message;
mod proxy;
mod wire;
