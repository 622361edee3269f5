//! The protocol between a controller and its worker processes and nodes. Its state machines (`controller`, `member`) do no
//! I/O: they have no clock, socket, thread or lock (sans-I/O). `disco-channel` runs them over sockets and rings; the
//! simulation runs them under a virtual clock. Linux only.
//!
//! ```text
//!  lane's methods ──┐  events, now   ┌──────────────┐  writes     ┌──────────────────────┐
//!                   ├───────────────▶│    engine    │────────────▶│ connections (sockets)│
//!  reactor thread ──┘                │ (state only) │  actions    ├──────────────────────┤
//!        ▲                           │              │────────────▶│ inbox, store, kills  │
//!        └── waits until ────────────│ next_timeout │             └──────────────────────┘
//!                                    └──────────────┘
//! ```
//!
//! | looking for | open |
//! |---|---|
//! | the controller's end of a lane: one engine for all its peers | [`controller`] |
//! | the other end: one worker process or node | [`member`] |
//! | how both ends prove that they have the same token; encryption after that | [`handshake`], [`rank_handshake`], [`noise`], [`token`] |
//! | nodes that relay for others | [`tree`] |
//! | limits of frames and bytes that are under way | [`credit`], [`limits`] |
//! | calls of the store that wait for their answers | [`pending_requests`] |
//! | clocks of machines, compared by heartbeats | [`clock`] |
//! | packets of replies, as workers send them | [`reply`] |
//! | random bytes of the system, for tokens and nonces | [`random`] |
//!
//! # Driving the controller's end
//! Any thread may call it, under one lock. One thread, here called the reactor, also carries out its actions.
//!
//! 1. [`Controller::new`](controller::Controller::new) with the terms of its peers.
//! 2. Each thread: [`handle`](controller::Controller::handle) for an event, with its time. For a frame of the session:
//!    [`room`](controller::Controller::room), [`check`](controller::Controller::check),
//!    [`note_effect`](controller::Controller::note_effect), then
//!    [`submit_packed`](controller::Controller::submit_packed), or [`post`](controller::Controller::post) if a ring carries
//!    the small frames.
//! 3. Each thread, before it releases the lock: [`next_write`](controller::Controller::next_write) until `None`. It writes
//!    each packet; if a connection takes no more bytes, the event `Full` follows at once. Then
//!    [`take_wake`](controller::Controller::take_wake): true if the reactor has to be woken, for actions or for an earlier
//!    timeout.
//! 4. The reactor: [`next_action`](controller::Controller::next_action) until `None`. It carries them out in order and
//!    without the lock, and brings the events that follow. Then it waits until
//!    [`next_timeout`](controller::Controller::next_timeout), which it reports as `Timer`, for the connections, for new ones
//!    while [`accepts`](controller::Controller::accepts), and for the ends of processes. After the action `Over`, it ends.
//! 5. To close: the event `Close`, then [`go_on_closing`](controller::Controller::go_on_closing) at intervals, until
//!    [`stuck`](controller::Controller::stuck) has the workers that did not leave.
//!
//! # Driving a member's end
//! One thread drives it. `PartReceived` comes after packets that are no messages of their own: parts of a large message;
//! `Closed` and `Failed` end it; `Timeout` comes at `next_timeout`.
//!
//! 1. [`Joining::new`](member::joining::Joining::new) with HELLO or JOIN. `next_action` until `None`, then `handle` the next
//!    event, and so on until the action `Taken`, `Retry` or `Refused`.
//! 2. [`Member::worker`](member::serving::Member::worker) or [`Member::node`](member::serving::Member::node), as the message
//!    of `Taken` says. A node brings `Started` once its lane has started.
//! 3. `handle`, then `next_action` until `None`, and so on until the action `End`. While
//!    [`wants_room`](member::serving::Member::wants_room), a node brings `Room` as soon as its lane takes frames; without
//!    [`listens`](member::serving::Member::listens), the socket is not read.
//!
//! # Invariants
//! - The simulation (`sim`) runs both ends against each other: 10,000 seeds, each a session with freezes,
//!   stalls, deaths, cuts, half-open connections, garbage, connections without the token, and restarts. It checks the
//!   order of commands and of output, credit, admission, epochs, the reports of losses and of exit statuses, and that
//!   each wait ends. The simulation fails for each planted fault (`fault::Fault`).
//! - At shutdown, a lane reports that a worker has left after the worker's last reply (`Inbox::left`); then waits for
//!   replies of that worker end. Waits for a worker that was given up end when the lanes are closed. So no wait
//!   outlives its session, and replies before the shutdown are delivered.
//! - A node that has the token but does not match the session (another program, another number of workers) is
//!   refused. The start waits for other nodes until its deadline, whose error lists the refused nodes with the
//!   reasons (the last 16, and the number of the others; at most three connections without the token, one for each
//!   address and reason).
//! - With more nodes than the fan-out, nodes relay. A node's lane is then two lanes: that to its own workers, and a
//!   lane to its children, with the engine and the reactor of the controller's own lane to nodes. Nodes are numbered
//!   in preorder, so a subtree's workers are one range, which starts with those of its first node. All nodes join the
//!   controller. It grows the tree (`tree.rs`), has those listen that relay (RELAY, LISTENS), assigns its
//!   children, each with the sizes of the subtrees behind it, and sends the others to their parents (REDIRECT), which
//!   admit them by their numbers. Frames go down as they came, large values inside of them; calls of the store go up
//!   to the controller.
//! - A node that waits for its workers at the end sends heartbeats meanwhile, since nodes behind it may need longer
//!   than the silence timeout. A node that falls silent then is reported as stuck, with its workers.
//! - A node that is lost takes the nodes behind it along: its parent reports the whole range once, and the nodes
//!   behind end since their controller is lost. A lost node behind others is reported up as a cause and a range; each
//!   level finds the node by its workers, and the controller knows its name.
//! - Replies of a node's workers, and of those behind it, to a `sync_all` go up as one message
//!   (`member/upward.rs`). If one is late, the others go up at the next poll of progress, as one
//!   message for each range of workers, so that reports name the missing worker only. If one fails, later ones go
//!   alone. Equal progress of neighbours, and departures, go up as ranges, too.
//! - A node answers each heartbeat of its controller at once, with its clock's time. The answer is its own heartbeat,
//!   too; while none of the controller comes, it sends one in each interval.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests compare texts"))]
#![cfg(target_os = "linux")]

pub mod clock;
pub mod controller;
pub mod credit;
mod fault;
pub mod handshake;
pub mod limits;
mod liveness;
pub mod member;
pub mod noise;
pub mod pending_requests;
pub mod random;
pub mod rank_handshake;
pub mod reply;
#[cfg(test)]
mod sim;
pub mod token;
mod transfers;
pub mod tree;

use liveness::{Attention, Liveness};
