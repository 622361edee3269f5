//! A row of the table, as a worker function.

use disco_core::{Error, Result, Value, WorkerContext};

use super::stage::{Scope, Stage};
use super::table;

/// Runs a row on this worker, and says what came of it as a [`Verdict`](super::verdict::Verdict).
pub(super) const ROW: &str = "disco.conformance.row";

disco_core::register_function!(ROW, row);

fn row(ctx: &mut WorkerContext, name: String, scope: u32, run: i64, exact: bool) -> Result<Value> {
    let found = table::find(&name).ok_or_else(|| Error::invalid(format!("there is no check `{name}`")))?;
    let scope = Scope::ALL.get(scope as usize).copied();
    let scope = scope.ok_or_else(|| Error::invalid("there is no such communicator"))?;
    let mut stage = Stage::new(ctx, scope, run, exact)?;
    Ok(found.run(&mut stage)?.into_value())
}
