//! Both ends of a remote lane under a virtual clock and a seeded network, without sleeps, threads or sockets.
//!
//! ```text
//!  session model ──▶ controller's engine ◀─▶ links ◀─▶ member's engine ◀─▶ worker models     × nodes or processes
//!  (commands, waits,  (the real one)         (order,    (the real one)      (registers, collectives over the
//!   recoveries, end)                          delays,                        store, failures)
//!                                             cuts)
//!                  plan: freezes, deaths, exits, cuts, half-open connections, garbage, strangers, restarts, a reactor that
//!                        stalls while callers go on, a suspension of all machines
//! ```
//!
//! A [`World`](world::World) runs one session from its start until nothing is left. It is a function of its seed: `DISCO_SEED=n` runs
//! one seed again and prints the events. Each run checks these rules:
//!
//! - Each worker gets all commands, in one order and once each; a session that ends in order has lost none. The same holds for the
//!   lines that workers print. Commands go over connections, large ones in parts, or through a ring that waits for no reader whose end
//!   was reported.
//! - Each wait ends: for replies, for room, for the store, for the start, for the end of the lane and of each host. The loss of a host that
//!   was harmed, or of one worker of a node, is reported in time, and no other loss is. The loss of a process tells its exit status.
//! - A reply comes once, from a worker that was asked and has not left. Large arguments and large values of replies arrive as they were.
//! - The first failure of an epoch follows from no other one; aborts of an epoch that is over reach no worker of the next one.
//! - Strangers get no place, and hear nothing but a greeting and a refusal.
//! - No more frames are under way to a host than its credit allows; a full lane is given none. While large arguments use up the
//!   credit, the lane takes small commands.
//! - Each peer is reported once as left or lost, each worker of a node once by its node. The lane is over once, no connection is open at
//!   the end, and no process that the session has started runs.

mod harm;
mod host;
mod joiner;
mod lead;
mod link;
mod plan;
mod random;
mod session;
mod worker;
mod world;

mod tests;
