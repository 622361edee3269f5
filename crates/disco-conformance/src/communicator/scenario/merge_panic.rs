//! Scenario: the function of a reduction panics.

use disco_core::error::ErrorKind;
use disco_core::{CommunicatorExt as _, DType, Error, Reduction, Result, Session, WorkerContext};

use super::{end_limit, recover};
use crate::communicator::verdicts::CheckResult;
use crate::harness::Harness;
use crate::timeout::within;

const MERGE: &str = "disco.conformance.merge";
/// The reduction that panics.
pub(super) const PANICS: Reduction = Reduction::Custom("disco.conformance.panics");
/// The text of the panic.
const TEXT: &str = "this reduction panics, as the check requires";
/// Elements of small messages, and of large ones, of which each rank may merge a share.
const COUNTS: [i64; 2] = [4, 300_000];

disco_core::register_function!(MERGE, merge);
// Panics without the output of `panic!`.
disco_core::register_reduction!(PANICS.name(), u8, |_, _, _| std::panic::resume_unwind(Box::new(TEXT)));

/// All-reduces with a function that panics: each rank returns soon, with the panic or because another rank has it.
pub(super) async fn run(session: &dyn Session, harness: &dyn Harness, run: i64) -> CheckResult<usize> {
    for count in COUNTS {
        let limit = end_limit(harness);
        let ended = within(panic(session, count), limit).await;
        ended.unwrap_or_else(|| Err(format!("not all ranks returned within {limit:?} after the panic")))?;
        recover(session, harness, run).await?;
    }
    Ok(COUNTS.len())
}

async fn panic(session: &dyn Session, count: i64) -> CheckResult<()> {
    let to_text = |error: Error| error.to_string();
    let function = session.function(MERGE).await.map_err(to_text)?;
    session.call(&function, (count,)).await.map_err(to_text)?;
    let failure = match session.sync_all().await {
        Err(Error::Worker(failure)) => failure,
        other => return Err(format!("a reduction panicked, and sync_all gives {other:?}")),
    };
    let text = format!("all_reduce: the reduction `{PANICS}` panicked: {TEXT}");
    if failure.kind == ErrorKind::Panicked && failure.operation.contains(MERGE) && failure.message == text {
        Ok(())
    } else {
        Err(format!("expected `{text}` in {MERGE}, but the session reports: {failure}"))
    }
}

fn merge(ctx: &mut WorkerContext, count: i64) -> Result<()> {
    let x = ctx.empty(DType::U8, [count, 1])?;
    ctx.comm()?.all_reduce_in_place(&x, PANICS)?;
    ctx.comm()?.synchronize()
}
