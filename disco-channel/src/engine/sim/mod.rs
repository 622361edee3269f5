//! Both ends of a remote lane under a virtual clock and a seeded network, without sleeps, threads or sockets.
//!
//! ```text
//!  session model ──▶ controller's engine ◀─▶ links ◀─▶ member's engine ◀─▶ worker models     × nodes or processes
//!  (commands, waits,  (the real one)         (order,    (the real one)      (registers, collectives over the
//!   recoveries, end)                          delays,                        store, failures)
//!                                             cuts)
//!                  plan: freezes, deaths, cuts, half-open connections, garbage, strangers, restarts
//! ```
//!
//! A [`World`](world::World) runs one session from its start until nothing is left. It is a function of its seed: `DISCO_SEED=n` runs
//! one seed again and prints the events. The rules that each run checks are [`World::breach`](world::World::breach)'s callers.

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
