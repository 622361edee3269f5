//! The suite of a data plane: every operation on every dtype, reduction, size, root and group, and every kind of
//! failure.
//!
//! ```text
//! controller: Suite::run(check) ── for each world of the harness and each kind of communicator ──┐
//!   a row of the table: call("disco.conformance.row", name, …) ▶ on each worker: runs and compares its sub-cases
//!   a scenario: failures, mismatches, order; each has its own worker functions
//! ```
//!
//! Workers find checks by name, so they may be in any process of the same program. After a sub-case with a wrong
//! result, a rank runs the remaining ones, because the other ranks take part in them. An operation that fails ends the
//! check.

mod behaviour;
mod buffer;
mod chain;
mod collective;
mod fixture;
mod mixed;
mod part;
mod scenario;
mod shipped;
mod suite;
mod table;
mod transfer;
mod verdict;
mod verdicts;
mod worker;

pub use suite::Suite;
