//! Worker functions of the suite.

use disco_core::{DType, Error, OpKind, Result, Value, WorkerContext};

use super::fixture::{Fixture, Scope};
use super::table;
use super::verdicts::ROW;

/// Returns whether the worker's communicator supports an operation on a dtype.
pub(super) const SUPPORTS: &str = "disco.conformance.supports";

disco_core::register_function!(ROW, row);
disco_core::register_function!(SUPPORTS, supports);

fn row(ctx: &mut WorkerContext, name: String, scope: u32, run: i64, exact: bool, detects: bool) -> Result<Value> {
    let found = table::find(&name).ok_or_else(|| Error::invalid(format!("there is no check `{name}`")))?;
    let scope = Scope::ALL.get(scope as usize).copied();
    let scope = scope.ok_or_else(|| Error::invalid("there is no such communicator"))?;
    let mut fixture = Fixture::new(ctx, scope, run, (exact, detects))?;
    Ok(found.run(&mut fixture)?.into_value())
}

/// Whether the backend supports an operation. An empty name is no reduction.
fn supports(ctx: &mut WorkerContext, kind: String, dtype: DType, reduction: String) -> Result<bool> {
    let found = OpKind::ALL.into_iter().find(|known| known.name() == kind);
    let kind = found.ok_or_else(|| Error::invalid(format!("there is no operation `{kind}`")))?;
    let reduction = if reduction.is_empty() { None } else { Some(reduction.parse()?) };
    Ok(ctx.comm()?.capabilities().supports(kind, dtype, reduction))
}
