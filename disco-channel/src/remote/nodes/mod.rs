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
//! that they have the session's token ([`handshake`](disco_engine::handshake)), and encrypt all that follows
//! ([`noise`](disco_engine::noise)); then the node sends JOIN with the names of its worker functions. Once all nodes have joined, the controller sends each its number and workers; the node starts
//! these and sends READY.
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
//! **Commands.** A frame is sent at once if no other was sent just before, or if a caller waits for its reply. Else it
//! may linger, so that one write carries many frames. A node acknowledges frames
//! that it has passed on to its workers; at most 1,024 frames and about 64 MiB are unacknowledged.
//!
//! **Replacement.** A node that is lost has a successor, with a lane of its own. A node that is connected starts new processes
//! in the places of its lost ones: it is told so (REPLACE), and joins the lane to them as one more node with its number
//! (`controller/hosting.rs`, `node/guests.rs`). So a lane to a node may not have all its workers, and a node's program may
//! serve several lanes.
//!
//! **The end.** Each end sends a heartbeat every second. A node that is silent for 5 s, closes the connection or sends
//! garbage is lost, with all its workers and with the nodes behind it. A node whose controller is lost aborts and stops its workers. A
//! node that sees a failure or a loss reports it and at once aborts its workers and those behind it; the abort of the others
//! comes from the controller. A
//! child that this end has started itself is killed when it is lost; other nodes that it has started, 2 s after they were
//! told to shut down.
//!
//! Without the feature `nodes`, each start of such a session, each join and each question for the status is an error that
//! [`check`] makes.
//!
//! # Invariants
//! - Every listener has a secret. A session of nodes has a token: random if the session starts the nodes itself,
//!   which get it through their environment or MPI, otherwise the user's. The socket of worker processes accepts only
//!   processes of this user with a random token, and workers connect only to a socket of this user (`SO_PEERCRED`).
//! - After the handshake, a connection to a node is a stream of encrypted records (`docs/security.md`). The engine
//!   makes the keys and knows nothing else of encryption: the connection seals packets when it writes them. A part of
//!   a large packet has a record of its own, so a small packet never waits for the rest of a record.
//! - A lane to nodes that were started elsewhere is the *entrance* of its session: it listens until it is closed, and
//!   the session keeps it although all its nodes are lost and replaced (`LaneFacts::is_entrance`). After the start, a
//!   connection may ask for the session's status, which needs the token, too; or it is a node that stands by, or
//!   comes late. A replacement is a lane of its own, with an address of its own. It tells the entrance of its
//!   vacancy, and the entrance sends nodes there (REDIRECT to node 0), at most as many as are missing: a node that
//!   was sent counts until it has joined, or for 5 s. Without a vacancy, a late node is told that it comes too late.
//!   The reactor thread then accepts ten connections at once and pauses for 100 ms, so that handshakes take little
//!   time from the session. Asking for the status reaches no worker.
//! - A TCP connection has no rights before it has proved the session's token: its bytes until then have a fixed size,
//!   and are compared but not parsed. It has 5 s. There are at most 256 such connections
//!   (`nodes::Options::max_pending`); another one replaces the oldest.
//! - Of a node that closes its connection, the reactor asks TCP whether bytes were sent again and again without an
//!   acknowledgement (`reactor/connection/tcp_info.rs`). Then large packets do not arrive, and the cause of the loss
//!   says so.

mod addresses;
mod controller;
mod invitation;
mod node;
mod status;

pub(crate) use addresses::loopback;
pub use addresses::{everywhere, host_and_port};
pub use controller::{Announce, Announcement, NodeLane, NodeProcess, Options};
pub(crate) use invitation::NodeInvitation;
pub use node::{JoinOptions, StopHandle, serve};
pub use status::status;

pub use disco_engine::noise::check;
pub use disco_engine::token::Token;

/// Size of the socket's send buffer. An urgent packet waits for the bytes in it.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Makes a connection between nodes of a TCP stream.
fn connection(
    stream: std::net::TcpStream,
    waker: std::sync::Arc<crate::remote::reactor::Waker>,
) -> std::io::Result<crate::remote::reactor::Connection> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
    crate::remote::reactor::Connection::new(stream, waker)
}
