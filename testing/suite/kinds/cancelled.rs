//! Calls that the controller cancels: before they begin, between their steps, inside collectives, at deadlines.

use std::path::Path;
use std::thread;
use std::time::Duration;

use disco::error::ErrorKind;
use disco::{
    CommunicatorExt as _, DRef, Deadlines, Error, LaneSession, Op, Reduction, Result, Tensor, Value, WorkerContext,
    WorkerId,
};
use disco_conformance::waiting::{wait_for, wait_until_in_collective, wait_until_inside};

use super::marker::Marker;
use super::{Kind, builder};
use crate::with_session::with_session;

super::tests![
    a_call_that_has_not_begun_is_left_out,
    a_function_that_asks_returns_its_result_and_breaks_nothing,
    a_collective_under_way_ends_and_the_session_goes_on,
    an_operation_that_not_all_workers_have_started_ends_with_its_call,
    the_cancelled_handle_says_so_whatever_is_queued_behind_it,
    a_later_call_never_meets_a_cancelled_one,
    a_cancellation_after_the_end_has_no_effect,
    a_deadline_cancels_the_late_call,
];

disco::register_function!("tests.until_cancelled", until_cancelled);
disco::register_function!("tests.sum_without_0", sum_without_0);
disco::register_function!("tests.total", total);
disco::register_function!("kinds.sum_of", sum_of);
disco::register_function!("tests.start_and_go", start_and_go);
disco::register_function!("tests.nap_of", nap_of);

/// Returns once the call is cancelled.
fn until_cancelled(ctx: &mut WorkerContext, entered: String) -> Result<i64> {
    std::fs::write(entered, "").unwrap();
    wait_for("the cancellation", || ctx.cancelled().then_some(()));
    Ok(ctx.worker().wire())
}

/// A sum over all workers, which worker 0 joins only after a cancellation.
fn sum_without_0(ctx: &mut WorkerContext) -> Result<()> {
    let x = Tensor::from_slice(&[1i64], [1])?;
    if ctx.worker().index() == 0 {
        wait_for("the cancellation", || ctx.cancelled().then_some(()));
    }
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)
}

fn total(ctx: &mut WorkerContext) -> Result<i64> {
    let x = Tensor::from_slice(&[1 + ctx.worker().wire()], [1])?;
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
    Ok(x.view::<i64>()?[0])
}

/// The sum of `number` over all workers.
fn sum_of(ctx: &mut WorkerContext, number: i64, elements: usize) -> Result<i64> {
    let x = Tensor::from_vec(vec![number; elements], elements)?;
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
    Ok(x.view::<i64>()?[elements - 1])
}

/// Starts a sum and does not wait for it.
fn start_and_go(ctx: &mut WorkerContext) -> Result<()> {
    let x = Tensor::from_slice(&[1i64], [1])?;
    drop(ctx.comm()?.start(&[Op::AllReduce { src: None, dst: x, reduction: Reduction::Sum }])?);
    ctx.store().add("started", 1).map(drop)
}

/// The workers from `first` on sleep.
fn nap_of(ctx: &mut WorkerContext, first: u32, time: f64) -> Result<()> {
    if ctx.worker() >= WorkerId::new(first) {
        thread::sleep(Duration::from_secs_f64(time));
    }
    Ok(())
}

async fn totals(session: &LaneSession) -> Vec<i64> {
    let total = session.call("tests.total", ()).await.unwrap();
    session.get_all(&total).await.unwrap()
}

/// Checks that the call has failed as cancelled on a worker, with this reason.
async fn expect_cancelled(session: &LaneSession, call: &DRef, worker: u32, why: &str) {
    let error = session.value(call, WorkerId::new(worker)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("worker {worker}: tests.")) && text.ends_with(why), "{text}");
}

fn a_call_that_has_not_begun_is_left_out(kind: Kind) {
    with_session(builder(kind), async |session| {
        let file = Marker::new();
        let first = session.call("tests.until_cancelled", (file.path(),)).await.unwrap();
        let call = session.call("tests.until_cancelled", (file.path(),)).await.unwrap();
        let next = session.call("tests.whoami", ()).await.unwrap();
        wait_until_inside(session, "tests.until_cancelled", 0..4);
        // Each worker learns of the second cancellation after the first one.
        session.cancel(&call, "the user has left").unwrap();
        session.cancel(&first, "go on").unwrap();
        assert_eq!(session.get_all::<i64>(&first).await.unwrap(), [0, 1, 2, 3]);
        for worker in 0..4 {
            expect_cancelled(session, &call, worker, "cancelled: the user has left").await;
        }
        // The session has not failed.
        session.sync_all().await.unwrap();
        assert_eq!(session.get_all::<i64>(&next).await.unwrap(), [0, 1, 2, 3]);
        // A call that uses the missing result fails as with any poisoned register.
        session.call("tests.echo", (&call,)).await.unwrap();
        let error = session.sync_all().await.unwrap_err();
        assert!(error.to_string().contains("cancelled: the user has left"), "{error}");
        session.recover().await.unwrap();
    });
}

fn a_function_that_asks_returns_its_result_and_breaks_nothing(kind: Kind) {
    with_session(builder(kind), async |session| {
        session.init_ccl("local", &[]).await.unwrap();
        let function = session.function("tests.until_cancelled").await.unwrap();
        let files = [(); 4].map(|()| Marker::new());
        let call = session.call_each(&function, |worker| (files[worker.index()].path().to_owned(),)).await.unwrap();
        files.iter().for_each(|file| wait_for("all workers", || Path::new(file.path()).exists().then_some(())));
        session.cancel(&call, "no longer needed").unwrap();
        assert_eq!(session.get_all::<i64>(&call).await.unwrap(), [0, 1, 2, 3]);
        // No later call is cancelled, and the communicators are whole.
        assert_eq!(totals(session).await, [10; 4]);
    });
}

fn a_collective_under_way_ends_and_the_session_goes_on(kind: Kind) {
    with_session(builder(kind), async |session| {
        session.init_ccl("local", &[]).await.unwrap();
        let call = session.call("tests.sum_without_0", ()).await.unwrap();
        wait_until_in_collective(session, 1..4);
        session.cancel(&call, "too late").unwrap();
        session.sync_all().await.unwrap();
        for worker in 0..4 {
            expect_cancelled(session, &call, worker, "cancelled: too late").await;
        }
        // The communicators are broken, and nothing else.
        let marks = session.call("tests.marks", ()).await.unwrap();
        assert_eq!(session.get_all::<i64>(&marks).await.unwrap(), [0; 4]);
        session.call("tests.total", ()).await.unwrap();
        let error = session.sync_all().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
        session.init_ccl("local", &[]).await.unwrap();
        assert_eq!(totals(session).await, [10; 4]);
    });
}

/// Worker 0 has started an operation and left the call, which the other workers have not begun.
fn an_operation_that_not_all_workers_have_started_ends_with_its_call(kind: Kind) {
    with_session(builder(kind), async |session| {
        session.init_ccl("local", &[]).await.unwrap();
        let file = Marker::new();
        let function = session.function("tests.until_cancelled").await.unwrap();
        let wait = session.call_on(1..4, &function, (file.path(),)).await.unwrap();
        let call = session.call("tests.start_and_go", ()).await.unwrap();
        wait_until_inside(session, "tests.until_cancelled", 1..4);
        assert_eq!(session.value(&call, WorkerId::new(0)).await.unwrap(), Value::None);
        session.cancel(&call, "not needed").unwrap();
        session.cancel(&wait, "go on").unwrap();
        session.sync_all().await.unwrap();
        assert!(!session.is_whole().await.unwrap());
        session.init_ccl("local", &[]).await.unwrap();
        assert_eq!(totals(session).await, [10; 4]);
    });
}

fn the_cancelled_handle_says_so_whatever_is_queued_behind_it(kind: Kind) {
    with_session(builder(kind), async |session| {
        session.init_ccl("local", &[]).await.unwrap();
        let call = session.call("tests.sum_without_0", ()).await.unwrap();
        let queued = session.call("tests.total", ()).await.unwrap();
        wait_until_in_collective(session, 1..4);
        session.cancel(&call, "too late").unwrap();
        // The queued call fails on all workers.
        let error = session.sync_all().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
        assert!(error.to_string().contains("the controller has cancelled command"), "{error}");
        assert_eq!(session.values(&queued).await.unwrap_err().kind(), ErrorKind::Broken);
        let cancelled = session.values(&call).await.unwrap_err();
        assert_eq!(cancelled.kind(), ErrorKind::Cancelled, "{cancelled}");
        for worker in 0..4 {
            expect_cancelled(session, &call, worker, "cancelled: too late").await;
        }
        session.recover().await.unwrap();
        assert!(!session.is_whole().await.unwrap());
        session.init_ccl("local", &[]).await.unwrap();
        assert!(session.is_whole().await.unwrap());
    });
}

/// Worker 0 is inside a sum when the call is cancelled, and the others have not begun it. The next call's sum is right, or
/// an error.
fn a_later_call_never_meets_a_cancelled_one(kind: Kind) {
    for check in [false, true] {
        with_session(builder(kind).check(check), cancel_at_moments);
    }
}

async fn cancel_at_moments(session: &LaneSession) {
    for round in 0..15u32 {
        session.init_ccl("local", &[]).await.unwrap();
        let elements = [1, 100, 40_000][round as usize % 3];
        session.call("tests.nap_of", (1, 0.002)).await.unwrap();
        let call = session.call("kinds.sum_of", (1000, elements)).await.unwrap();
        let next = session.call("kinds.sum_of", (1, elements)).await.unwrap();
        thread::sleep(Duration::from_micros(1700 + u64::from(round) * 40));
        session.cancel(&call, "not needed").unwrap();
        match session.get_all::<i64>(&next).await {
            Ok(sums) => assert_eq!(sums, [4; 4], "round {round}"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Broken | ErrorKind::Aborted), "round {round}: {error}");
            }
        }
    }
}

fn a_cancellation_after_the_end_has_no_effect(kind: Kind) {
    with_session(builder(kind), async |session| {
        session.init_ccl("local", &[]).await.unwrap();
        for _ in 0..10 {
            let total = session.call("tests.total", ()).await.unwrap();
            assert_eq!(session.get_all::<i64>(&total).await.unwrap(), [10; 4]);
            session.cancel(&total, "late").unwrap();
            assert_eq!(session.get_all::<i64>(&total).await.unwrap(), [10; 4]);
        }
        let other = builder(kind).start().unwrap();
        let foreign = other.call("tests.whoami", ()).await.unwrap();
        assert_eq!(session.cancel(&foreign, "late").unwrap_err().kind(), ErrorKind::ForeignRef);
        other.shutdown().await.unwrap();
        assert!(matches!(other.cancel(&foreign, "late"), Err(Error::Closed(_))));
    });
}

fn a_deadline_cancels_the_late_call(kind: Kind) {
    let deadlines = Deadlines::default().with_call(Duration::from_millis(300));
    with_session(builder(kind).deadlines(deadlines), async |session| {
        let file = Marker::new();
        let call = session.call("tests.until_cancelled", (file.path(),)).await.unwrap();
        let error = session.sync_all().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadline { after: Duration::from_millis(300) }, "{error}");
        // The function has learned of it, and has returned.
        session.sync_all().await.unwrap();
        assert_eq!(session.get_all::<i64>(&call).await.unwrap(), [0, 1, 2, 3]);
        assert_eq!(session.value(&call, WorkerId::new(3)).await.unwrap(), Value::Int(3));
    });
}
