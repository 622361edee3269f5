//! Scenario: a rank does not call an operation.

use std::time::Duration;

use disco_core::{CommunicatorExt, Error, Result, Session, WorkerContext};

use crate::communicator::verdicts::CheckResult;

/// The collective deadline of these sessions. It is long enough for operations that complete, also on a busy machine.
pub(super) const SHORT: Duration = Duration::from_secs(1);

const STAY_AWAY: &str = "disco.conformance.stay_away";

disco_core::register_function!(STAY_AWAY, stay_away);

/// All but the last worker enter a barrier.
fn stay_away(ctx: &mut WorkerContext) -> Result<()> {
    if ctx.worker().index() + 1 == ctx.world().size() {
        return Ok(());
    }
    ctx.comm()?.barrier()?;
    if ctx.device().is_host() {
        Err(Error::invalid("`enqueue` returned Ok, but host operations must be complete when it returns"))
    } else {
        Ok(())
    }
}

pub(super) async fn run(session: &dyn Session) -> CheckResult<usize> {
    let to_text = |error: Error| error.to_string();
    let function = session.function(STAY_AWAY).await.map_err(to_text)?;
    session.call(&function, ()).await.map_err(to_text)?;
    let missing = format!("rank {}", session.world().size() - 1);
    match session.sync_all().await {
        Err(error) if error.to_string().contains("no end after") && error.to_string().contains(&missing) => Ok(1),
        other => Err(format!("{missing} did not enter the barrier, and sync_all gives {other:?}")),
    }
}
