//! Operations that a worker function starts, and that run while it computes.

use std::thread;
use std::time::Duration;

use disco::{
    Builder, CommunicatorExt as _, Deadlines, Error, LaneSession, Op, Reduction, Result, Tensor, Work, WorkerContext,
    block_on,
};
use disco_conformance::waiting::{wait_for, wait_until_in_collective};

use super::marker::Marker;
use super::{Kind, builder};

super::tests![
    a_started_operation_runs_beside_its_rank_and_claims_its_tensors,
    a_failure_ends_started_operations_whether_a_rank_waits_or_not,
    a_started_operation_ends_at_the_deadline_with_the_absent_ranks,
    a_worker_counts_as_inside_a_collective_only_while_it_waits,
    a_get_waits_for_the_operation_that_writes_the_tensor,
    a_refused_operation_is_not_counted,
    the_deadline_of_calls_does_not_limit_waits_for_started_operations,
    a_cancelled_operation_ends_on_all_ranks_and_breaks_their_communicator,
];

disco::register_function!("tests.beside", beside);
disco::register_function!("tests.start_and_leave", start_and_leave);
disco::register_function!("tests.start_late", start_late);
disco::register_function!("tests.start_slow", start_slow);
disco::register_function!("tests.refused", refused);
disco::register_reduction!("tests.slow_sum", i64, slow_sum);
disco::register_function!("tests.start_and_cancel", start_and_cancel);

/// Elements of a tensor that `local` neither posts nor stages in one piece.
const MANY: usize = 300_000;

fn sum_of(x: &Tensor) -> [Op; 1] {
    [Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Sum }]
}

/// Worker 0 starts its operation once all others have seen that theirs runs. Then the tensor of all ranks is changed.
fn beside(ctx: &mut WorkerContext, elements: usize) -> Result<(Vec<i64>, i64)> {
    let (store, me, size) = (ctx.store(), ctx.worker().index(), ctx.world().size());
    let key = format!("started {elements}");
    let x = Tensor::from_vec(vec![1 + me as i64; elements], elements)?;
    if me == 0 {
        wait_for("the other ranks", || (store.add(&key, 0).unwrap() == size as i64 - 1).then_some(()));
    }
    let works = [ctx.comm()?.start(&sum_of(&x))?];
    if me != 0 {
        assert!(!works[0].wait_timeout(Duration::from_millis(1))?, "worker 0 has not started its operation");
        assert!(!works[0].has_ended() && matches!(x.view::<i64>(), Err(Error::Busy(_))));
        assert!(matches!(ctx.comm()?.start(&sum_of(&x)), Err(Error::Busy(_))), "the tensor is claimed");
        store.add(&key, 1)?;
    }
    works.iter().try_for_each(Work::wait)?;
    assert!(works[0].has_ended() && works[0].wait().is_ok() && works[0].wait_timeout(Duration::ZERO)?);
    ctx.comm()?.cancel(&works[0], "has no effect on ended operations");
    x.view_mut::<i64>()?[0] += 1;
    // A work that is dropped goes on, and `enqueue` runs after it.
    drop(ctx.comm()?.start(&sum_of(&x))?);
    let y = Tensor::from_slice(&[1i64], [1])?;
    ctx.comm()?.all_reduce_in_place(&y, Reduction::Sum)?;
    let x = x.to_vec::<i64>()?;
    assert!(x[1..].iter().all(|element| *element == x[1]));
    Ok((x[..2].to_vec(), y.view::<i64>()?[0]))
}

fn a_started_operation_runs_beside_its_rank_and_claims_its_tensors(kind: Kind) {
    let session = plane(builder(kind));
    block_on(async {
        for elements in [2, MANY] {
            let result = session.call("tests.beside", (elements,)).await.unwrap();
            let results = session.get_all::<(Vec<i64>, i64)>(&result).await.unwrap();
            assert_eq!(results, vec![(vec![44, 40], 4); 4]);
        }
        session.shutdown().await.unwrap();
    });
}

fn plane(builder: Builder) -> LaneSession {
    let session = builder.start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    session
}

/// All workers but one start an operation; some wait for it, and the others leave the function. The other worker fails
/// once they have started, if it does at all.
fn start_and_leave(ctx: &mut WorkerContext, absent: usize, fails: bool) -> Result<()> {
    let (store, me, size) = (ctx.store(), ctx.worker().index(), ctx.world().size());
    if me == absent {
        wait_for("the other ranks", || (store.add("started", 0).unwrap() == size as i64 - 1).then_some(()));
        return if fails { Err(Error::invalid("out of luck")) } else { Ok(()) };
    }
    let x = Tensor::from_vec(vec![1i64; MANY], MANY)?;
    let work = ctx.comm()?.start(&sum_of(&x))?;
    store.add("started", 1)?;
    if me.is_multiple_of(2) { work.wait() } else { Ok(()) }
}

fn a_failure_ends_started_operations_whether_a_rank_waits_or_not(kind: Kind) {
    let session = plane(builder(kind));
    block_on(async {
        for absent in 0..2 {
            session.call("tests.start_and_leave", (absent, true)).await.unwrap();
            let error = session.sync_all().await.unwrap_err().to_string();
            let start = format!("worker {absent}: tests.start_and_leave (command ");
            assert!(error.starts_with(&start) && error.contains("): out of luck"), "{error}");
            session.init_ccl("local", &[]).await.unwrap();
        }
        let result = session.call("tests.beside", (MANY,)).await.unwrap();
        session.values(&result).await.unwrap();
        session.shutdown().await.unwrap();
    });
}

fn a_started_operation_ends_at_the_deadline_with_the_absent_ranks(kind: Kind) {
    let session = plane(builder(kind).collective_deadline(Duration::from_millis(500)));
    block_on(async {
        session.call("tests.start_and_leave", (3, false)).await.unwrap();
        // Which rank notices first depends on their threads. Workers 1 and 3 have left the function: the sync waits there.
        let error = session.sync_all().await.unwrap_err().to_string();
        assert!(error.contains("all_reduce sum i64 x 300000: no end after 500ms: rank 3 has not arrived"), "{error}");
        session.init_ccl("local", &[]).await.unwrap();
        session.shutdown().await.unwrap();
    });
}

/// Worker 0 starts its operation once `first` exists. The others wait for `second` between their start and their wait.
fn start_late(ctx: &mut WorkerContext, first: String, second: String) -> Result<()> {
    let exists = |file: &str| wait_for("a file", || std::fs::exists(file).unwrap().then_some(()));
    let is_late = ctx.worker().index() == 0;
    if is_late {
        exists(&first);
    }
    let work = ctx.comm()?.start_barrier()?;
    if !is_late {
        ctx.store().add("inside", 1)?;
        exists(&second);
    }
    work.wait()
}

fn slow_sum(into: &mut [i64], from: &[i64], _: usize) {
    thread::sleep(Duration::from_millis(300));
    into.iter_mut().zip(from).for_each(|(sum, number)| *sum += number);
}

/// The tensor that an operation writes when the function returns.
fn start_slow(ctx: &mut WorkerContext) -> Result<Tensor> {
    let x = Tensor::from_slice(&[1i64, 2], [1, 2])?;
    let sum = Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Custom("tests.slow_sum") };
    drop(ctx.comm()?.start(&[sum])?);
    Ok(x)
}

fn a_get_waits_for_the_operation_that_writes_the_tensor(kind: Kind) {
    let session = plane(builder(kind));
    block_on(async {
        let x = session.call("tests.start_slow", ()).await.unwrap();
        let sums = session.get_all::<Tensor>(&x).await.unwrap();
        assert!(sums.iter().all(|sum| sum.to_vec::<i64>().unwrap() == [4, 8]), "{sums:?}");
        session.shutdown().await.unwrap();
    });
}

fn the_deadline_of_calls_does_not_limit_waits_for_started_operations(kind: Kind) {
    let session = plane(builder(kind).deadlines(Deadlines::default().with_call(Duration::from_millis(100))));
    block_on(async {
        for _ in 0..2 {
            session.call("tests.start_slow", ()).await.unwrap();
            session.sync_all().await.unwrap();
        }
        session.shutdown().await.unwrap();
    });
}

/// Worker 0 is refused an operation whose tensors do not fit, and starts one while its tensor is in use; the others do
/// neither. Then all reduce `x`.
fn refused(ctx: &mut WorkerContext) -> Result<i64> {
    let [x, y] = [Tensor::from_slice(&[1i64, 2], [2])?, Tensor::from_slice(&[0i64], [1])?];
    if ctx.worker().index() == 0 {
        let unequal = [Op::AllReduce { src: Some(x.clone()), dst: y, reduction: Reduction::Sum }];
        assert!(matches!(ctx.comm()?.enqueue(&unequal), Err(Error::Invalid(_))));
        assert!(matches!(ctx.comm()?.start(&unequal), Err(Error::Invalid(_))));
        let _view = x.view::<i64>()?;
        assert!(matches!(ctx.comm()?.enqueue(&sum_of(&x)), Err(Error::Busy(_))));
        assert!(matches!(ctx.comm()?.start(&sum_of(&x)), Err(Error::Busy(_))));
        let own = [Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Custom("tests.slow_sum") }];
        assert!(matches!(ctx.comm()?.enqueue(&own), Err(Error::Busy(_))));
    }
    ctx.comm()?.start(&sum_of(&x))?.wait()?;
    Ok(x.to_vec::<i64>()?[1])
}

/// Also when ranks compare the numbers of their operations, and in the report of a later deadline.
fn a_refused_operation_is_not_counted(kind: Kind) {
    for check in [false, true] {
        let session = plane(builder(kind).check(check).collective_deadline(Duration::from_secs(2)));
        block_on(async {
            let sum = session.call("tests.refused", ()).await.unwrap();
            assert_eq!(session.get_all::<i64>(&sum).await.unwrap(), [8; 4]);
            session.call("tests.start_and_leave", (3, false)).await.unwrap();
            let error = session.sync_all().await.unwrap_err().to_string();
            assert!(error.contains("rank 3 has not arrived"), "{error}");
            assert!(!error.contains("different"), "{error}");
            session.init_ccl("local", &[]).await.unwrap();
            session.shutdown().await.unwrap();
        });
    }
}

fn a_worker_counts_as_inside_a_collective_only_while_it_waits(kind: Kind) {
    let session = plane(builder(kind));
    let [first, second] = [Marker::new(), Marker::new()];
    block_on(async {
        session.call("tests.start_late", (first.path(), second.path())).await.unwrap();
        disco_conformance::waiting::wait_until_inside(&session, "tests.start_late", 0..4);
        assert!(session.status().workers.iter().all(|worker| worker.operation.is_none()));
        std::fs::write(second.path(), "").unwrap();
        wait_until_in_collective(&session, 1..4);
        std::fs::write(first.path(), "").unwrap();
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
}

/// All workers but worker 3 start a sum, and worker 1 cancels its own once all have. Returns the errors of the sum and of the
/// next operation.
fn start_and_cancel(ctx: &mut WorkerContext) -> Result<Vec<String>> {
    let (store, me) = (ctx.store(), ctx.worker().index());
    let x = Tensor::from_vec(vec![1i64; MANY], MANY)?;
    if me == 3 {
        return Ok(Vec::new());
    }
    let sum = ctx.comm()?.start_all_reduce_in_place(&x, Reduction::Sum)?;
    store.add("started", 1)?;
    if me == 1 {
        wait_for("the other ranks", || (store.add("started", 0).unwrap() == 3).then_some(()));
        ctx.comm()?.cancel(&sum, "no longer needed");
    }
    let errors = [sum.wait(), ctx.comm()?.barrier()].map(Result::unwrap_err);
    // An operation that has not begun is not aborted: it finds its communicator broken.
    assert!(matches!(errors, [Error::Aborted { .. } | Error::Broken { .. }, Error::Broken { .. }]), "{errors:?}");
    Ok(errors.map(|error| error.to_string()).into())
}

fn a_cancelled_operation_ends_on_all_ranks_and_breaks_their_communicator(kind: Kind) {
    let session = plane(builder(kind));
    block_on(async {
        let errors = session.call("tests.start_and_cancel", ()).await.unwrap();
        let errors = session.get_all::<Vec<String>>(&errors).await.unwrap();
        let name_the_cause = |errors: &Vec<String>| errors.iter().all(|error| error.contains("no longer needed"));
        assert!(errors[..3].iter().all(name_the_cause), "{errors:?}");
        // The session goes on; new communicators work.
        session.init_ccl("local", &[]).await.unwrap();
        let result = session.call("tests.beside", (2,)).await.unwrap();
        session.values(&result).await.unwrap();
        session.shutdown().await.unwrap();
    });
}
