//! Both ends of a remote lane under a virtual clock and a seeded network, without sleeps, threads or sockets.
//!
//! ```text
//!  session model ──▶ controller's engine ◀─▶ links ◀─▶ member's engine ◀─▶ worker models     × nodes or processes
//!  (commands, waits,  (the real one)         (order,    (the real one)      (registers, collectives over the
//!   recoveries, end)                          delays,                        store, failures)
//!                                             cuts)
//!                  plan: freezes, deaths, exits, cuts, half-open connections, garbage, intruders, restarts,
//!                        a reactor that stalls while callers go on, a suspension of all machines
//! ```
//!
//! Both simulations share `events` (clock and queue), `phase` (the member's end) and `terms` (token, store).
//!
//! A [`World`](world::World) runs one session from its start until all connections and processes have ended. A run is
//! determined by its seed: `DISCO_SEED=n` repeats one run and prints its events. Each run checks these invariants:
//!
//! - Each worker gets all commands, once each and in one order; a session that shuts down in order loses none. The same
//!   holds for the lines that workers print. Commands go over connections, large ones in parts, or through a ring that
//!   does not wait for readers whose end was reported.
//! - Each wait ends: for replies, room, the store, the start, and the end of the lane and of each host. The loss of a
//!   disrupted host, or of one worker of a node, is reported in time, and no other loss is. The loss of a process has
//!   its exit status.
//! - Each reply comes once, from a worker that was asked and has not left. Large arguments and large values of replies
//!   arrive unchanged.
//! - The first failure of an epoch does not follow from another one. Aborts of an epoch that is over reach no worker of
//!   the next one.
//! - An intruder is not admitted, and gets nothing but a greeting and a refusal.
//! - A host has no more unacknowledged frames than its credit allows, and a full lane is sent none. While large
//!   arguments use up the credit, the lane takes small commands.
//! - Each peer is reported as left or lost once, and each worker of a node once by its node. The lane ends once. At the
//!   end, no connection is open, and no process that the session has started runs.

mod controller;
mod disruption;
mod events;
mod host;
mod joiner;
mod link;
mod phase;
mod plan;
mod random;
mod sending;
mod session;
mod terms;
mod tree;
mod worker;
mod world;

mod tests;

pub(crate) use random::Random;
