//! Trees of nodes under a virtual clock: each node that relays has both engines, the member's end to its parent and the
//! controller's end to its children.
//!
//! ```text
//!  script ──▶ end 0: controller's engine ◀─ links ─▶ end k: member's engine, controller's engine ◀─ links ─▶ …
//!  (frames,          (the real one)         (latency)      (the real ones)
//!   loss, end)
//! ```
//!
//! One worker of each node carries out commands (`jobs`): it meets those of the other nodes in the session's store, fails and
//! recovers. Each end has one CPU: a message waits until the messages before it are handled, and each sent and received
//! message costs time. With [`Costs::measured`], the time that the real engines take on this machine is added, so that a
//! run shows how a session of many nodes behaves (`scale`). Without it, a run is determined by its seed, which makes its
//! [`plan`] with deaths, freezes, cut links and lost workers. `tests` checks it:
//!
//! - Each node gets all commands in one order, and replies once to each sync of all.
//! - A node that is to replace a worker learns of it, and no other node does.
//! - Each wait ends: of the start, of a sync, of a call of the store, and of the end of each node.
//! - A disruption that loses a node or a worker is reported with its number, and with those of the nodes behind it. No
//!   other loss is reported. All nodes that are left then stop their workers or abort them.
//! - The first failure of an epoch does not follow from an abort, and the session goes on after a recovery.
//! - A worker that does not leave, or that of a node that is frozen at the end, is reported as stuck.

mod costs;
mod disruption;
mod end;
mod jobs;
mod lower;
mod plan;
mod scale;
mod tests;
mod upper;
mod world;
