//! Scenario: a rank drops its communicator while the other ranks wait for it.

use std::sync::Arc;

use disco_core::{Error, Op, Result, Session, WorkerContext, WorkerId};

use super::end_limit;
use crate::communicator::verdicts::CheckResult;
use crate::harness::Harness;
use crate::timeout::within;

const DROP: &str = "disco.conformance.drop_or_wait";
/// Starts of the return value of a rank that has waited.
const ENDED: &str = "Ok";
const LOST: &str = "lost: ";
const OTHER: &str = "error: ";

disco_core::register_function!(DROP, drop_or_wait);

pub(super) async fn run(session: &dyn Session, harness: &dyn Harness, run: i64) -> CheckResult<usize> {
    let last = session.world().size() - 1;
    for culprit in [0, last] {
        // Ranks that do not detect the drop return at their deadline, which is `end_limit` at most.
        let limit = 5 * end_limit(harness);
        let waits = within(waits(session, culprit, run), limit).await;
        let waits = waits.ok_or_else(|| {
            format!("rank {culprit} dropped its communicator, and the ranks that wait for it did not return within {limit:?}")
        })?;
        judge(culprit, &waits?, harness.detects_dropped_peers())?;
    }
    Ok(2)
}

/// The ends of all ranks' waits, by rank. The rank that has dropped its communicator has none.
async fn waits(session: &dyn Session, culprit: usize, run: i64) -> CheckResult<Vec<Option<String>>> {
    let to_text = |error: Error| error.to_string();
    let function = session.function(DROP).await.map_err(to_text)?;
    let key: Arc<str> = format!("conformance {run}: dropped by {culprit}").into();
    let handle = session.call(&function, (WorkerId::new(culprit as u32).wire(), key)).await.map_err(to_text)?;
    session.sync_all().await.map_err(to_text)?;
    let mut waits = Vec::new();
    for worker in session.world().workers() {
        let wait: String = session.get(&handle, worker).await.map_err(to_text)?;
        waits.push((worker.index() != culprit).then_some(wait));
    }
    Ok(waits)
}

/// Checks that all ranks got an error. If `detects`, the drop must be the cause: at least one rank has the error that its
/// peer is lost, and each other rank has this error or was aborted because of it.
fn judge(culprit: usize, waits: &[Option<String>], detects: bool) -> CheckResult<()> {
    let waits = || waits.iter().enumerate().filter_map(|(rank, wait)| Some((rank, wait.as_deref()?)));
    if let Some((rank, _)) = waits().find(|(_, wait)| *wait == ENDED) {
        return Err(format!("rank {culprit} dropped its communicator, and the barrier of rank {rank} gives Ok"));
    }
    if detects && !waits().any(|(_, wait)| wait.starts_with(LOST)) {
        let waits: Vec<String> = waits().map(|(rank, wait)| format!("rank {rank}: {wait}")).collect();
        return Err(format!(
            "rank {culprit} dropped its communicator, and no rank that waited for it got `Error::Lost`: {}",
            waits.join("; ")
        ));
    }
    Ok(())
}

/// The culprit drops a communicator, and the other ranks wait for it in a barrier. They return the end of their wait.
fn drop_or_wait(ctx: &mut WorkerContext, culprit: u32, key: String) -> Result<String> {
    let (me, size, store) = (ctx.worker().index(), ctx.world().size(), ctx.store());
    let deadline = ctx.deadline();
    let child = ctx.comm()?.split(Some(0), 0)?;
    let mut child = child.ok_or_else(|| Error::invalid("split: a color was passed, but there is no communicator"))?;
    let key = |worker: usize| format!("{key}: {worker}");
    if me == culprit as usize {
        for peer in (0..size).filter(|peer| *peer != me) {
            store.wait(&key(peer), deadline)?;
        }
        drop(child);
        return Ok(ENDED.into());
    }
    store.set(&key(me), b"about to enter")?;
    let ended = child.enqueue(&[Op::Barrier]).and_then(|()| child.synchronize());
    Ok(match ended {
        Ok(()) => ENDED.into(),
        Err(error @ Error::Lost(_)) => format!("{LOST}{error}"),
        Err(error) => format!("{OTHER}{error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_must_get_an_error_and_one_that_its_peer_is_lost_if_the_backend_detects_it() {
        let waits = |waits: [&str; 2]| [None, Some(waits[0].to_owned()), Some(waits[1].to_owned())];
        let [lost, late] = ["lost: rank 0", "error: no end after 1s"];
        for (ends, is_right, is_right_if_detected) in
            [([lost, late], true, true), ([late, late], true, false), ([lost, ENDED], false, false)]
        {
            assert_eq!(judge(0, &waits(ends), false).is_ok(), is_right, "{ends:?}");
            assert_eq!(judge(0, &waits(ends), true).is_ok(), is_right_if_detected, "{ends:?}");
        }
    }
}
