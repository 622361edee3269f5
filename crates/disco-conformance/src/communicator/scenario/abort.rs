//! Scenario: one worker fails while the others are inside an operation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use disco_core::{DType, Error, Op, OpKind, Reduction, Result, Session, WorkerContext, WorkerId};

use super::{end_limit, recover};
use crate::communicator::fixture::rank;
use crate::communicator::verdicts::CheckResult;
use crate::harness::Harness;
use crate::timeout::within;

const LISTENERS: &str = "disco.conformance.abort_listeners";
const FAIL: &str = "disco.conformance.fail_inside";
/// The error text of the worker that fails.
const FAILURE_TEXT: &str = "this worker fails, as the check requires";

disco_core::register_function!(LISTENERS, abort_listeners);
disco_core::register_function!(FAIL, fail_inside);

/// The operation of the other workers, and the kind of the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) struct Abort {
    pub(super) kind: OpKind,
    pub(super) panics: bool,
}

impl Abort {
    pub(super) async fn run(self, session: &dyn Session, harness: &dyn Harness, run: i64) -> CheckResult<usize> {
        let last = session.world().size() - 1;
        for culprit in [0, last] {
            // A worker that hangs can't be asked afterwards.
            let deaf = deaf_worker(session).await.map_err(|error| error.to_string())?;
            let limit = end_limit(harness);
            let ended = within(self.run_with_culprit(session, culprit, run), limit).await;
            ended.unwrap_or_else(|| Err(self.no_end(culprit, limit, deaf)))?;
            recover(session, harness, run).await?;
        }
        Ok(2)
    }

    /// The error about ranks that do not return after the failure of the culprit.
    fn no_end(self, culprit: usize, limit: Duration, deaf: Option<WorkerId>) -> String {
        let failure = if self.panics { "panicked" } else { "failed" };
        let listener = match deaf {
            Some(worker) => {
                format!("the backend registered no listener with `Link::on_abort` on {worker}: `connect` must do so")
            }
            None => {
                "the backend registered listeners with `Link::on_abort`, so their `abort` does not end the wait of \
                     every rank"
                    .to_owned()
            }
        };
        format!(
            "the ranks inside {} did not return within {limit:?} after worker {culprit} {failure}; {listener}",
            self.kind
        )
    }

    async fn run_with_culprit(self, session: &dyn Session, culprit: usize, run: i64) -> CheckResult<()> {
        let worker = WorkerId::new(culprit as u32);
        let to_text = |error: Error| error.to_string();
        let function = session.function(FAIL).await.map_err(to_text)?;
        let key: Arc<str> = format!("conformance {run}: culprit {culprit}").into();
        let args = (self.kind.name(), worker.wire(), self.panics, key);
        let handle = session.call(&function, args).await.map_err(to_text)?;
        let failure = match session.sync_all().await {
            Err(Error::Worker(failure)) => failure,
            other => return Err(format!("{worker} failed, and sync_all gives {other:?}")),
        };
        if failure.worker != worker || !failure.to_string().contains(FAILURE_TEXT) {
            return Err(format!(
                "expected the root cause `{FAILURE_TEXT}` of {worker}, but the session reports: {failure}"
            ));
        }
        let peers = session.world().workers().filter(|peer| *peer != worker && !self.may_end(peer.index(), culprit));
        for peer in peers {
            // The value would be available if the operation had ended before the abort.
            if session.value(&handle, peer).await.is_ok() {
                return Err(format!("{} ended on {peer}, although {worker} has not called it", self.kind));
            }
        }
        Ok(())
    }

    /// Whether the operation of rank `me` can end without the rank that fails.
    fn may_end(self, me: usize, culprit: usize) -> bool {
        match self.kind {
            // The root is next to the culprit.
            OpKind::Reduce | OpKind::Gather => me != root(culprit),
            OpKind::Broadcast | OpKind::Scatter | OpKind::Send => true,
            _ => false,
        }
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.panics { "panics" } else { "fails" };
        write!(f, "abort::{}::a_worker_{how}_and_the_others_return", self.kind)
    }
}

/// The first worker without a listener for aborts, if there is one.
async fn deaf_worker(session: &dyn Session) -> Result<Option<WorkerId>> {
    let listeners = session.call(&session.function(LISTENERS).await?, ()).await?;
    for worker in session.world().workers() {
        if session.get::<i64>(&listeners, worker).await? == 0 {
            return Ok(Some(worker));
        }
    }
    Ok(None)
}

/// The number of listeners for aborts of this worker.
fn abort_listeners(ctx: &mut WorkerContext) -> Result<i64> {
    Ok(ctx.link().abort_listeners() as i64)
}

fn root(culprit: usize) -> usize {
    if culprit == 0 { 1 } else { 0 }
}

fn fail_inside(ctx: &mut WorkerContext, kind: String, culprit: u32, panics: bool, key: String) -> Result<()> {
    let (me, size, store) = (ctx.worker().index(), ctx.world().size(), ctx.store());
    let key = |worker: usize| format!("{key}: {worker}");
    if me != culprit as usize {
        let op = op(ctx, &kind, culprit as usize)?;
        store.set(&key(me), b"about to enter")?;
        let comm = ctx.comm()?;
        comm.enqueue(&[op])?;
        return comm.synchronize();
    }
    for peer in (0..size).filter(|peer| *peer != me) {
        store.wait(&key(peer), ctx.deadline())?;
    }
    if panics {
        // Panics without the output of `panic!`.
        std::panic::resume_unwind(Box::new(FAILURE_TEXT));
    }
    Err(Error::invalid(FAILURE_TEXT))
}

/// An operation of this kind that waits for the culprit, if the kind has one.
fn op(ctx: &mut WorkerContext, kind: &str, culprit: usize) -> Result<Op> {
    let (me, size) = (ctx.worker().index(), ctx.world().size());
    let mut make = |count: usize| ctx.empty(DType::F32, [count as i64]);
    let (one, all, reduction) = (make(5)?, make(5 * size)?, Reduction::Sum);
    let (receives, gives) = (rank(root(culprit)), rank(culprit));
    let is_receiver = me == receives.index();
    let counts: Arc<[usize]> = vec![5; size].into();
    let found = OpKind::ALL.into_iter().find(|known| known.name() == kind);
    Ok(match found {
        Some(OpKind::AllReduce) => Op::AllReduce { src: None, dst: one, reduction },
        Some(OpKind::Reduce) => {
            Op::Reduce { src: Some(one), dst: is_receiver.then(|| make(5)).transpose()?, reduction, root: receives }
        }
        Some(OpKind::ReduceScatter) => Op::ReduceScatter { src: Some(all), dst: one, reduction },
        Some(OpKind::AllGather) => Op::AllGather { src: Some(one), dst: all },
        Some(OpKind::Broadcast) => Op::Broadcast { src: None, dst: one, root: gives },
        Some(OpKind::Gather) => Op::Gather { src: Some(one), dst: is_receiver.then_some(all), root: receives },
        Some(OpKind::Scatter) => Op::Scatter { src: None, dst: Some(one), root: gives },
        Some(OpKind::AllToAll) => Op::AllToAll { src: None, dst: all },
        Some(OpKind::AllGatherV) => Op::AllGatherV { src: Some(one), dst: all, counts },
        Some(OpKind::AllToAllV) => {
            Op::AllToAllV { src: None, send_counts: counts.clone(), dst: all, recv_counts: counts }
        }
        Some(OpKind::Send) => Op::Send { src: one, to: gives },
        Some(OpKind::Recv) => Op::Recv { dst: one, from: gives },
        Some(OpKind::Barrier) => Op::Barrier,
        _ => return Err(Error::invalid(format!("the conformance suite has no abort scenario for `{kind}`"))),
    })
}
