//! Trees of nodes under a virtual clock: each node that relays has both engines, the member's end to its parent and the
//! controller's end to its children.
//!
//! ```text
//!  script ──▶ end 0: controller's engine ◀─ links ─▶ end k: member's engine, controller's engine ◀─ links ─▶ …
//!  (frames,          (the real one)         (latency)      (the real ones)
//!   loss, end)
//! ```
//!
//! Workers reply at once and never fail. Each end has one CPU: a message waits until the messages before it are handled,
//! and each sent and received message costs time. With [`Costs::measured`], the time that the real engines take on this
//! machine is added, so that a run shows how a session of many nodes behaves (`scale`). Without it, a run is determined
//! by its seed, and `tests` checks it: each node gets all commands in one order, each sync of all ends once, the loss of a
//! node is reported with its number and those of the nodes behind it, and all ends and links are over at the end.

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
