//! Workers that are processes of this machine.
//!
//! ```text
//! controller                                                  process of worker 3
//! ProcessLane::send ──── shared_ring, or FRAME ─────────────▶ ProcessEndpoint::recv       its main thread
//! ProcessLane::urgent ── ABORT, SHUTDOWN ─▶ ┐
//!                                           ├ a Unix socket ─ service thread ──▶ whatever waits on peers
//! thread `disco-service`                    │                 (heartbeats, the store's answers, descriptors)
//!   Inbox, store, shared descriptors ◀───── ┘ ◀── REPLY, NOTICE, PROGRESS, ASK, SHARE   from any of its threads
//!   the process's end ◀──────────────────────── pidfd
//! thread `disco-output` ◀────────────────────── its standard output and error, by lines
//! ```
//!
//! **Starting.** The lane listens on an abstract Unix socket, and starts a process for each worker with a variable that names the
//! worker, the socket and a random token. A process that connects has to be the same user's and to say HELLO (`disco_core::wire`) with
//! the token and the names of its worker functions; any other is sent away, and ends the start if it is one of this lane's own. A worker
//! says HELLO only to a socket of its own user. Admission, and all else that the lane decides, is `engine/controller`'s; the thread
//! `disco-service` is the `reactor`'s.
//!
//! **Commands** of up to 64 KiB go through the ring, larger ones as FRAME to those whom they concern; a record in the ring keeps
//! their place. Tensors above 64 KiB are in a sealed memfd, whose descriptor comes with BESIDE right before the FRAME; those of replies
//! likewise. Where there is no shared memory all frames are FRAME, with their tensors. Workers acknowledge FRAMEs, so that no more than 1,024
//! of them are unread: about 64 MiB of small ones, and of large ones about 64 MiB and one more. A worker makes a REPLY once at most 16 MiB
//! of its earlier messages are unread.
//!
//! **The end** of a worker is what comes first: its connection closes, its process ends, it says nothing for too long, or it
//! sends what no worker would. What it said before is heard first. A worker whose connection closes ends by itself; one
//! that is still there 4 s later kills itself.

mod controller;
mod invitation;
mod worker;

pub use controller::{Launch, Options, ProcessLane, Sink};
pub use invitation::{Invitation, VARIABLE};
pub use worker::{ProcessEndpoint, serve};
