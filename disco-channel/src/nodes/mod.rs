//! Workers on other machines, over TCP.
//!
//! ```text
//! controller, node 0                                          node 1
//! NodeLane::send ──── FRAME: one encoding, one write ───────▶ bridge ──▶ ThreadLane or ProcessLane ──▶ workers 4 to 7
//! NodeLane::signal ── ABORT, SHUTDOWN ──────────────────────▶   │
//! thread `disco-nodes`                                          │ the thread that called `serve`
//!   Inbox, store ◀── FROM worker REPLY, NOTICE, PROGRESS, STORE_REQUEST ──┤
//!   standard output and error ◀── FROM worker OUTPUT ───────────┘
//! ```
//!
//! **Starting.** The lane listens, by default on the loopback address. Node and controller first prove to each other
//! that they have the session's token ([`handshake`](crate::handshake)), and encrypt all that follows
//! ([`noise`](crate::noise)); then the node sends JOIN with the names of its worker functions. Once all nodes have joined, the controller sends each its number and workers; the node starts
//! these and sends READY. A connection that has not authenticated is closed after 5 s. There are at most 256 of these;
//! a new one then replaces the oldest, so that idle connections can't keep a node out.
//!
//! **Trees.** With more nodes than [`Options::fan_out`], nodes relay for nodes:
//!
//! ```text
//! controller                                  node 1, which relays                            node 2
//! NodeLane ── ASSIGN node 1, one behind it ─▶ bridge ──▶ Subtree ─┬─▶ lane to its own workers
//!          ── RELAY ──▶   ◀── LISTENS ──                          └─▶ lane to its children ──▶ bridge ──▶ lane
//!          ── REDIRECT node 2, address of node 1 ─────────────────────────────────────────▶ (before it joins node 1)
//! ```
//!
//! All nodes join the controller, which then grows the tree. A node that relays is the controller of its children, with
//! the same handshake, messages and limits. Replies, progress and departures that are equal go up as one message for a
//! range of workers. Calls of the store go up to the session's controller, and output goes up line by line.
//!
//! **After the start.** The lane listens on, if its options say so, for clients that ask for the session's [`status`], and
//! for nodes that stand by ([`JoinOptions::is_spare`]). A replacement of lost nodes is a lane of its own, which listens at
//! another address. Nodes that stand by, or that come while it waits, get REDIRECT to it; any other late node is told
//! that it is late, and may wait for the next session at the address.
//!
//! **Commands.** A frame is sent at once if no other was sent just before, or if a caller waits for its reply. Else it
//! may linger for 50 µs per node, at least 100 µs, so that one write carries many frames. A node acknowledges frames
//! that it has passed on to its workers; at most 1,024 frames and about 64 MiB are unacknowledged.
//!
//! **The end.** Each end sends a heartbeat every second. A node that is silent for 5 s, closes the connection or sends
//! garbage is lost, with all its workers and with the nodes behind it. A node whose controller is lost aborts and stops its workers. A
//! node that sees a failure or a loss reports it and at once aborts its workers and those behind it; the abort of the others
//! comes from the controller. A
//! child that this end has started itself is killed when it is lost; other nodes that it has started, 2 s after they were
//! told to shut down.

mod addresses;
mod controller;
mod invitation;
mod node;
mod status;

pub use addresses::{everywhere, host_and_port};
pub use controller::{Announce, Announcement, NodeLane, NodeProcess, Options};
pub(crate) use invitation::NodeInvitation;
pub use node::{JoinOptions, StopHandle, serve};
pub use status::status;

pub use crate::token::Token;

/// Size of the socket's send buffer. An urgent packet waits for the bytes in it.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Makes a connection between nodes of a TCP stream.
fn connection(
    stream: std::net::TcpStream,
    waker: std::sync::Arc<crate::reactor::Waker>,
) -> std::io::Result<crate::reactor::Connection> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
    crate::reactor::Connection::new(stream, waker)
}
