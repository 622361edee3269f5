//! Workers on other machines, over TCP.
//!
//! ```text
//! controller, node 0                                          node 1
//! NodeLane::send ──── FRAME: one encoding, one write ───────▶ bridge ──▶ ThreadLane or ProcessLane ──▶ workers 4 to 7
//! NodeLane::urgent ── ABORT, SHUTDOWN ──────────────────────▶   │
//! thread `disco-nodes`                                          │ the thread that called `serve`
//!   Inbox, store ◀── FROM worker REPLY, NOTICE, PROGRESS, ASK ──┤
//!   standard output and error ◀── FROM worker OUTPUT ───────────┘
//! ```
//!
//! **Starting.** The lane listens, on the loopback unless it is told otherwise. Whoever connects proves that it has the
//! session's token, as the controller does ([`handshake`](crate::handshake)), before a byte of anything else is looked at; then it says JOIN with its
//! worker functions. Once all nodes are here, each is told which one it is, starts its workers and says READY. Strangers have
//! 5 s, and the oldest of too many goes first, so that nobody who only holds a connection keeps a node out.
//!
//! **Commands.** A frame goes at once if none has just gone, or if somebody waits for its reply; else it may linger for 50 µs
//! a node, 100 at least, so that many go with one write. A node acknowledges what it has passed on to its workers, so that no more than
//! 1,024 frames and about 64 MiB are under way.
//!
//! **The end.** Both ends say something each second. One that is silent for 5 s, closes the connection or sends garbage is gone: a
//! node's workers are then lost, all of them; a node whose controller is gone aborts and stops its workers. A node that the session
//! has started itself is killed when it is lost, or 2 s after it was let go of.

mod addresses;
mod controller;
mod node;

pub use addresses::everywhere;
pub use controller::{Announce, Announcement, NodeLane, NodeProcess, Options};
pub use node::{JoinOptions, serve};

pub use crate::token::Token;

/// What the socket may hold of what is to be sent: an urgent packet waits for it.
const SOCKET: usize = 512 << 10;

/// A connection between nodes.
fn connection(
    stream: std::net::TcpStream,
    waker: std::sync::Arc<crate::reactor::Waker>,
) -> std::io::Result<crate::reactor::Connection> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, SOCKET)?;
    crate::reactor::Connection::new(stream, waker)
}
