//! Workers that are processes of this machine.
//!
//! ```text
//! controller                                                  process of worker 3
//! ProcessLane::send ──── shared_ring, or FRAME ─────────────▶ ProcessEndpoint::recv       its main thread
//! ProcessLane::signal ── ABORT, SHUTDOWN ─▶ ┐
//!                                           ├ a Unix socket ─ service thread ──▶ operations that wait for peers
//! thread `disco-service`                    │                 (heartbeats, the store's answers, descriptors)
//!   Inbox, store, shared descriptors ◀───── ┘ ◀── REPLY, NOTICE, PROGRESS, STORE_REQUEST, SHARE   from any thread
//!   the process's end ◀──────────────────────── pidfd
//! thread `disco-output` ◀────────────────────── its standard output and error, by lines
//! ```
//!
//! **Starting.** The lane listens on an abstract Unix socket, and starts a process for each worker with a variable that
//! names the worker, the socket and a random token. A process that connects must belong to the same user and send HELLO
//! (`disco_core::wire`) with the token and the names of its worker functions. Any other process is refused; if the lane
//! has started it, the start fails. A worker sends HELLO only to a socket of its own user. `disco_engine::controller` makes
//! these decisions; `reactor` runs the thread `disco-service`.
//!
//! **Commands** of up to 64 KiB go through the ring. Larger ones go as FRAME over the connections of the workers that
//! they concern, and a record in the ring keeps their place in the order. Tensors above 64 KiB, of commands and
//! replies, are in a sealed memfd, whose descriptor comes with BESIDE right before the packet. Without shared memory,
//! every frame is a FRAME with its tensors inside. Workers acknowledge FRAMEs; at most 1,024 of them and about 64 MiB,
//! plus one large frame, are unacknowledged. A worker encodes a reply once at most 16 MiB of its earlier messages are
//! unsent (back-pressure).
//!
//! **The end.** A worker is lost when its connection closes, its process ends, it is silent for too long, or it breaks
//! the protocol, whichever comes first. Messages that it sent before are handled first. After its connection closes,
//! the controller waits for the exit status of its process, 500 ms at most, so that the error names a signal. A worker
//! whose connection closes ends by itself; a worker that is still running 4 s later kills itself.
//!
//! **Spares** are processes without a worker's place: the variable says `spare`, and a socket is their standard input. A
//! spare sends a byte when its program takes the invitation, and gets the invitation as a line. If the socket closes before,
//! because the session or the controller's process has ended, the spare ends. The thread `disco-spares` starts and watches
//! spares; the lane to new workers takes them.

mod controller;
mod invitation;
mod worker;

pub use controller::{Launch, Options, ProcessLane, Sink, Spares, this_program};
pub use invitation::{Invitation, VARIABLE};
pub(crate) use worker::serve_in_subset;
pub use worker::{ProcessEndpoint, serve};
