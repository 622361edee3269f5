//! The protocol logic of remote lanes, without I/O: no clock, socket, thread or lock (sans-I/O).
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
//! An engine is a state machine. Each event comes with its time. The engine queues the results: bytes to write, which
//! the thread that brought the event writes, and actions, which the reactor thread carries out in order. Between
//! events, the engine needs a timer event at [`controller::Controller::next_timeout`]. Tests and the simulation drive
//! it with virtual time and connections.
//!
//! The [`member`] end is one worker process or node; the [`controller`] end is one lane to all of them.
//!
//! # Invariants
//! - A remote lane is an engine (`engine`): a state machine that takes events and the time, and returns writes and
//!   actions, under one lock. The calling thread writes frames and signals itself. The reactor thread makes all other
//!   calls of the inbox, the store and processes, in order and without the lock, except that a thread of its own
//!   collects and encodes the status for clients that ask; a polling caller delivers replies itself.
//! - The other end of a remote lane, in a worker process or a node, is an engine, too (`engine/member`). The
//!   simulation (`engine/sim`) runs both engines against each other: 10,000 seeds by default, each a session with
//!   freezes, stalls, deaths, cuts, half-open connections, garbage, connections without the token, and restarts. It
//!   checks the order of commands and of output, credit, admission, epochs, the reports of losses and of exit
//!   statuses, and that each wait ends.
//! - At shutdown, a lane reports that a worker has left after the worker's last reply (`Inbox::left`); then waits for
//!   replies of that worker end. Waits for a worker that was given up end when the lanes are closed. So no wait
//!   outlives its session, and replies before the shutdown are delivered.
//! - A node that has the token but does not match the session (another program, another number of workers) is
//!   refused. The start waits for other nodes until its deadline, whose error lists the refused nodes with the
//!   reasons (the last 16, and the number of the others; at most three connections without the token, one for each
//!   address and reason).
//! - A dropped session aborts running operations, and gives up workers that have not left after 3 s; each lane with
//!   such workers adds up to 2 s.
//! - A node is a bridge between a TCP connection and a lane of its own to the workers there. It is no session: the
//!   controller has the store and orders the commands.
//! - With more nodes than the fan-out, nodes relay. A node's lane is then two lanes: that to its own workers, and a
//!   lane to its children, with the engine and the reactor of the controller's own lane to nodes. Nodes are numbered
//!   in preorder, so a subtree's workers are one range, which starts with those of its first node. All nodes join the
//!   controller. It grows the tree (`engine/tree.rs`), has those listen that relay (RELAY, LISTENS), assigns its
//!   children, each with the sizes of the subtrees behind it, and sends the others to their parents (REDIRECT), which
//!   admit them by their numbers. Frames go down as they came, large values inside of them; calls of the store go up
//!   to the controller.
//! - A node that waits for its workers at the end sends heartbeats meanwhile, since nodes behind it may need longer
//!   than the silence timeout. A node that falls silent then is reported as stuck, with its workers.
//! - A node that is lost takes the nodes behind it along: its parent reports the whole range once, and the nodes
//!   behind end since their controller is lost. A lost node behind others is reported up as a cause and a range; each
//!   level finds the node by its workers, and the controller knows its name.
//! - Over connections (to nodes, and to processes without shared memory), a call without a reply may wait for later
//!   calls, so that one write sends several: 50 µs times the number of peers, and at least 100 µs. A command with a
//!   reply is sent at once, with the calls that wait. Replies, aborts, answers of the store and heartbeats are sent
//!   before frames, and large packets are sent in parts of 60 KiB.
//! - Lanes to threads and to processes wake only the workers that a command concerns: a sync of one worker leaves the
//!   others asleep, for at most 200 ms. In a thread lane, this time starts when the woken worker goes to sleep, and
//!   that worker then wakes the others.
//! - Replies of a node's workers, and of those behind it, to a `sync_all` go up as one message
//!   (`engine/member/upward.rs`). If one is late, those that have come go up at the next poll of progress, as one
//!   message for each range of workers, so that reports name the missing worker only. If one fails, later ones go
//!   alone. Equal progress of neighbours, and departures, go up as ranges, too.
//! - A node answers each heartbeat of its controller at once, with its clock's time. The answer is its own heartbeat,
//!   too; while none of the controller comes, it sends one in each interval.
//! - The service thread of an idle worker process or node wakes once in a heartbeat's interval: it polls progress
//!   rarely after 1 s without a change, until the worker runs or a frame comes. No thread spins after a heartbeat.
//! - A thread that waits for replies first polls its lanes (`Polled::poll`), and so does a node's thread. Workers of
//!   this machine leave replies without a value for it in words of their own (`replies.rs`), so a sync wakes no
//!   thread but the worker's, and a worker thread does not touch the table of replies. A session's workers do so
//!   while no caller sleeps, or another one polls meanwhile (`disco-core/src/stream/sleepers.rs`); a node's while its
//!   thread polls. Replies that were left are delivered before the worker is reported as left or lost.

pub(crate) mod clock;
pub(crate) mod controller;
pub(crate) mod credit;
pub(crate) mod fault;
pub(crate) mod limits;
mod liveness;
pub(crate) mod member;
pub(crate) mod pending_requests;
pub(crate) mod reply;
#[cfg(test)]
mod sim;
pub(crate) mod transfers;
pub(crate) mod tree;

pub(crate) use liveness::{Attention, Liveness};
