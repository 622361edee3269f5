//! The suite of a data plane: every operation on every dtype, reduction, size, root and group, and every failure.
//!
//! ```text
//! controller: Suite::run(check) ── for every world of the harness, and every kind of communicator ──┐
//!   a row of the table: call("disco.conformance.row", name, scope, …) ▶ on every worker: its sub-cases, compared there
//!   a scenario: failures, mismatches, order, each with worker functions of its own
//! ```
//!
//! Workers know checks by name, so that they may live in any process of the same program. A sub-case that gives a wrong
//! result does not keep a rank from the ones that follow, since the other ranks are in them; an operation that fails ends
//! the check.

mod behaviour;
mod buffer;
mod collective;
mod fixture;
mod mixed;
mod part;
mod scenario;
mod suite;
mod table;
mod transfer;
mod verdict;
mod worker;

pub use suite::Suite;
