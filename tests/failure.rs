//! Each failure of the design's list, tried for real, with the text that the user sees.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod gate;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use disco::{
    Builder, CommunicatorExt as _, DType, DataPlane, Deadlines, Error, LaneSession, Placement, Reduction, Scope,
    Session, SessionExt, Tensor, Value, WorkerContext, WorkerId, block_on,
};
use gate::Gate;

#[derive(Debug, thiserror::Error)]
#[error("the step failed")]
struct StepFailed(#[source] std::num::ParseIntError);

/// Fails on one worker, with a cause.
fn fail_on(ctx: &mut WorkerContext, worker: u32) -> Result<(), StepFailed> {
    match ctx.worker() == worker.into() {
        true => "x".parse::<i32>().map(drop).map_err(StepFailed),
        false => Ok(()),
    }
}

fn panic_on(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    assert!(ctx.worker() != worker.into(), "index {worker} is out of luck");
    Ok(())
}

fn add_one(_: &mut WorkerContext, x: i64) -> disco::Result<i64> {
    Ok(x + 1)
}

/// Blocks one worker until the gate opens.
fn wait_on(ctx: &mut WorkerContext, worker: u32, gate: u64) -> disco::Result<()> {
    if ctx.worker() == worker.into() {
        Gate::find(gate).wait();
    }
    Ok(())
}

/// A collective that one worker does not enter.
fn barrier_without(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if ctx.worker() != worker.into() {
        ctx.comm()?.barrier()?;
    }
    Ok(())
}

/// A barrier that one worker comes to late.
fn wait_at_barrier(ctx: &mut WorkerContext, worker: u32, gate: u64) -> disco::Result<()> {
    wait_on(ctx, worker, gate)?;
    ctx.comm()?.barrier()
}

/// All workers fail on their own account, the last one first.
fn fail_in_turn(ctx: &mut WorkerContext) -> disco::Result<()> {
    let turn = ctx.world().size() - ctx.worker().index();
    std::thread::sleep(Duration::from_millis(100 * turn as u64));
    Err(Error::Invalid("no luck".into()))
}

/// One worker fails once the others are inside the collective, as far as it can know.
fn fail_beside_barrier(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if ctx.worker() == worker.into() {
        std::thread::sleep(Duration::from_millis(20));
        return Err(Error::Invalid("out of memory".into()));
    }
    ctx.comm()?.barrier()
}

/// A tensor that is longer on one worker.
fn uneven(ctx: &mut WorkerContext, longer: u32) -> disco::Result<Tensor> {
    let extra = i64::from(ctx.worker() == longer.into());
    ctx.empty(DType::F32, [4 + extra])
}

fn sleep_on(ctx: &mut WorkerContext, worker: u32, milliseconds: u64) -> disco::Result<()> {
    if ctx.worker() == worker.into() {
        std::thread::sleep(Duration::from_millis(milliseconds));
    }
    Ok(())
}

fn count_up(_: &mut WorkerContext, x: usize) -> disco::Result<usize> {
    Ok(x + 1)
}

fn huge(_: &mut WorkerContext) -> disco::Result<u64> {
    Ok(1 << 63)
}

disco::register_function!("tests.sleep_on", sleep_on);
disco::register_function!("tests.count_up", count_up);
disco::register_function!("tests.huge", huge);
disco::register_function!("tests.fail_on", fail_on);
disco::register_function!("tests.panic_on", panic_on);
disco::register_function!("tests.add_one", add_one);
disco::register_function!("tests.wait_on", wait_on);
disco::register_function!("tests.barrier_without", barrier_without);
disco::register_function!("tests.fail_beside_barrier", fail_beside_barrier);
disco::register_function!("tests.uneven", uneven);
disco::register_function!("tests.wait_at_barrier", wait_at_barrier);
disco::register_function!("tests.fail_in_turn", fail_in_turn);

fn threads(workers: usize) -> LaneSession {
    Builder::threads(workers).start().unwrap()
}

fn text<T: std::fmt::Debug>(result: disco::Result<T>) -> String {
    result.unwrap_err().to_string()
}

/// Submits a call and syncs; the error's text.
async fn call_and_sync(session: &LaneSession, name: &str, arg: i64) -> String {
    let function = session.function(name).await.unwrap();
    session.call(&function, (arg,)).await.unwrap();
    text(session.sync_all().await)
}

#[test]
fn an_error_names_worker_function_command_register_and_causes() {
    let session = threads(3);
    block_on(async {
        let function = session.function("tests.fail_on").await.unwrap();
        let error = call_and_sync(&session, "tests.fail_on", 1).await;
        assert_eq!(
            error,
            "worker 1: tests.fail_on (command 2, register 1): the step failed: invalid digit found in string"
        );
        let fast = session.function("tests.add_one").await.unwrap_err();
        let earlier = |operation| {
            format!(
                "{operation}: not submitted, because an earlier command failed: {error}; `Session::recover` or \
                 `DataPlane::init_ccl` makes the workers forget the failure"
            )
        };
        assert_eq!(fast.to_string(), earlier("function"), "submissions fail fast with the root cause");
        assert_eq!(fast.failure().unwrap().to_string(), error);
        let again = session.copy_to_worker_0(&Tensor::zeros(DType::F32, 1).unwrap(), &function).await;
        assert_eq!(text(again), earlier("copy_to_worker_0"));
        session.recover().await.unwrap();
        session.function("tests.add_one").await.unwrap();
        session.shutdown().await.unwrap();
    });
}

#[test]
fn a_panic_is_an_error_and_the_process_lives() {
    let session = threads(2);
    block_on(async {
        let error = call_and_sync(&session, "tests.panic_on", 1).await;
        assert_eq!(error, "worker 1: tests.panic_on (command 2, register 1): panicked: index 1 is out of luck");
        session.shutdown().await.unwrap();
    });
}

#[test]
fn an_unknown_function_is_refused_with_the_one_meant() {
    let session = threads(1);
    block_on(async {
        let error = text(session.function("tests.ad_one").await);
        assert_eq!(error, "no worker function `tests.ad_one` is registered; did you mean `tests.add_one`?");
        session.function("tests.add_one").await.unwrap();
    });
}

#[test]
fn wrong_arguments_are_errors_by_position() {
    for (expected, args) in [
        ("argument 0: expected an int, got a string", vec![Value::from("one")]),
        ("expected 1 arguments, got 0", vec![]),
        ("expected 1 arguments, got 2", vec![Value::Int(1), Value::Int(2)]),
    ] {
        let session = threads(1);
        block_on(async {
            let function = session.function("tests.add_one").await.unwrap();
            let mut list = disco::Arguments::default();
            args.into_iter().for_each(|arg| list.push(arg));
            session.call(&function, list).await.unwrap();
            let error = text(session.sync_all().await);
            assert_eq!(error, format!("worker 0: tests.add_one (command 2, register 1): {expected}"));
        });
    }
}

#[test]
fn a_call_of_what_is_no_function_says_what_it_is() {
    let session = threads(1);
    block_on(async {
        let function = session.function("tests.add_one").await.unwrap();
        let two = session.call(&function, (1,)).await.unwrap();
        session.call(&two, ()).await.unwrap();
        let error = text(session.sync_all().await);
        assert_eq!(error, "worker 0: call (command 3, register 2): register 1 holds an int, not a function");
    });
}

fn all_reduce_of_uneven(check: bool) -> String {
    let session = Builder::threads(3).check(check).collective_deadline(Duration::from_secs(20)).start().unwrap();
    block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        let uneven = session.function("tests.uneven").await.unwrap();
        let x = session.call(&uneven, (2,)).await.unwrap();
        session.all_reduce(&x, &x, Reduction::Sum, Scope::World).await.unwrap();
        let error = text(session.sync_all().await);
        session.shutdown().await.unwrap();
        error
    })
}

#[test]
fn a_wrong_shape_on_one_rank_shows_both_sides_without_checks() {
    let error = all_reduce_of_uneven(false);
    assert!(error.contains("disco.all_reduce (command"), "{error}");
    assert!(error.contains("all_reduce: ranks disagree: "), "{error}");
    assert!(error.contains("all_reduce sum f32 x 4") && error.contains("all_reduce sum f32 x 5"), "{error}");
    assert!(error.contains("rank 2"), "{error}");
}

#[test]
fn a_wrong_shape_on_one_rank_shows_both_sides_with_checks() {
    let error = all_reduce_of_uneven(true);
    assert!(error.contains("all_reduce: ranks disagree: rank "), "{error}");
    assert!(
        error.contains("calls all_reduce sum f32 x 4") && error.contains("calls all_reduce sum f32 x 5"),
        "{error}"
    );
    assert!(error.contains("rank 2"), "{error}");
}

fn never_entered(check: bool) -> String {
    let deadline = Duration::from_millis(300);
    let session = Builder::threads(3).check(check).collective_deadline(deadline).start().unwrap();
    block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        let error = call_and_sync(&session, "tests.barrier_without", 1).await;
        session.shutdown().await.unwrap();
        error
    })
}

#[test]
fn a_rank_that_never_enters_a_collective_is_named() {
    for check in [false, true] {
        let error = never_entered(check);
        assert!(error.contains("tests.barrier_without (command "), "{error}");
        assert!(error.contains("barrier: no end after 300ms: "), "{error}");
        assert!(error.contains("rank 1 has not come"), "{error}");
    }
}

#[test]
fn peers_of_a_failed_rank_come_back_and_the_root_cause_is_reported() {
    let session = threads(4);
    block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        let error = call_and_sync(&session, "tests.fail_beside_barrier", 2).await;
        assert!(error.starts_with("worker 2: tests.fail_beside_barrier (command "), "{error}");
        assert!(error.ends_with("): out of memory"), "{error}");
        for worker in 0..4 {
            let one = text(session.sync_worker(WorkerId::new(worker)).await);
            assert_eq!(one, error, "whoever was aborted says why");
        }
        session.shutdown().await.unwrap();
    });
}

#[test]
fn init_ccl_makes_a_failed_session_usable_again() {
    let session = threads(3);
    block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        let before = session.empty(DType::I64, [2], Placement::All).await.unwrap();
        call_and_sync(&session, "tests.fail_beside_barrier", 0).await;
        assert!(session.empty(DType::I64, [2], Placement::All).await.is_err());
        session.init_ccl("local", &[]).await.unwrap();
        session.broadcast(&Tensor::from_slice(&[5i64, 7], [2]).unwrap(), &before).await.unwrap();
        session.all_reduce(&before, &before, Reduction::Sum, Scope::World).await.unwrap();
        let sum: Tensor = session.get_as(&before, WorkerId::new(2)).await.unwrap();
        session.sync_all().await.unwrap();
        assert_eq!(sum.to_vec::<i64>().unwrap(), [15, 21]);
        session.shutdown().await.unwrap();
    });
}

#[test]
fn values_from_before_the_error_can_still_be_fetched() {
    let session = threads(1);
    block_on(async {
        let add_one = session.function("tests.add_one").await.unwrap();
        let before = session.call(&add_one, (41,)).await.unwrap();
        let fail = session.function("tests.fail_on").await.unwrap();
        let failed = session.call(&fail, (0,)).await.unwrap();
        let error = text(session.sync_all().await);
        assert_eq!(session.get(&before, WorkerId::new(0)).await.unwrap(), Value::Int(42));
        assert_eq!(text(session.get(&failed, WorkerId::new(0)).await), error);
    });
}

#[test]
fn a_register_that_a_skipped_call_was_to_set_stays_poisoned_until_it_is_used_again() {
    let session = threads(1);
    block_on(async {
        let gate = Gate::new();
        let wait = session.function("tests.wait_on").await.unwrap();
        let (fail, add_one) =
            (session.function("tests.fail_on").await.unwrap(), session.function("tests.add_one").await.unwrap());
        // Submitted before the failure can be known.
        session.call(&wait, (0, gate.id())).await.unwrap();
        session.call(&fail, (0,)).await.unwrap();
        let skipped = session.call(&add_one, (1,)).await.unwrap();
        gate.open();
        let root = text(session.sync_all().await);
        session.recover().await.unwrap();
        session.call(&add_one, (&skipped,)).await.unwrap();
        let error = text(session.sync_all().await);
        assert!(error.ends_with(&root), "{error} is caused by {root}");

        session.recover().await.unwrap();
        let register = skipped.register();
        drop(skipped);
        let mut reused = Vec::new();
        while reused.last().is_none_or(|handle: &disco::DRef| handle.register() != register) {
            reused.push(session.call(&add_one, (1,)).await.unwrap());
        }
        let value = session.get(reused.last().unwrap(), WorkerId::new(0)).await.unwrap();
        assert_eq!(value, Value::Int(2), "the freed register travelled ahead of its reuse");
        session.shutdown().await.unwrap();
    });
}

#[test]
fn handles_after_shutdown_and_of_other_sessions_are_refused() {
    let (session, other) = (threads(1), threads(1));
    block_on(async {
        let mine = session.function("tests.add_one").await.unwrap();
        let foreign = other.function("tests.add_one").await.unwrap();
        assert_eq!(text(session.call(&foreign, (1,)).await), "register 0 belongs to another session");
        assert_eq!(text(session.call(&mine, (&foreign,)).await), "register 0 belongs to another session");
        session.shutdown().await.unwrap();
        assert_eq!(text(session.call(&mine, (1,)).await), "call: the session is shut down");
        assert_eq!(text(session.sync_all().await), "sync_all: the session is shut down");
        drop((mine, session));
        other.shutdown().await.unwrap();
        session_free_of(foreign);
    });
}

/// A handle may outlive its session.
fn session_free_of(handle: disco::DRef) {
    drop(handle);
}

#[test]
fn impossible_worlds_and_workers_are_refused() {
    let refused = |workers, groups| text(Builder::threads(workers).groups(groups).start());
    assert_eq!(refused(0, 1), "0 workers in 1 groups: a session needs at least 1 worker");
    assert_eq!(refused(4, 3), "4 workers in 3 groups: groups must be of equal size");
    let session = threads(4);
    let error = text(block_on(session.sync_worker(WorkerId::new(99))));
    assert_eq!(error, "worker 99: no such worker; the session has 4, numbered from 0");
}

#[test]
fn a_collective_before_init_ccl_says_what_to_call() {
    let session = threads(1);
    block_on(async {
        let x = session.empty(DType::F32, [1], Placement::All).await.unwrap();
        session.all_reduce(&x, &x, Reduction::Sum, Scope::World).await.unwrap();
        let error = text(session.sync_all().await);
        assert!(error.ends_with("no communicator on this worker: call `init_ccl` first"), "{error}");
    });
}

#[test]
fn an_unknown_backend_lists_the_ones_there_are() {
    let session = threads(1);
    let error = text(block_on(session.init_ccl("ucc", &[])));
    let expected = "backend `ucc` is not available; tried the backends compiled into this program: it has cuda_p2p, local, mpi, nccl, \
                    rccl, rocm_p2p";
    let advice =
        "a backend of another crate is linked once the program mentions that crate: write `use the_crate as _;`";
    assert_eq!(error, format!("{expected}; {advice}"));
    assert!(matches!(block_on(session.sync_all()), Ok(())), "nothing was started");
}

fn impatient() -> Deadlines {
    Deadlines::default().with_stall(Duration::from_millis(200)).with_close(Duration::from_millis(200))
}

#[test]
fn calls_behind_a_stuck_worker_end_in_stalled_and_shutdown_names_it() {
    let session = Builder::threads(3).deadlines(impatient()).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        let wait = session.function("tests.wait_on").await.unwrap();
        let add_one = session.function("tests.add_one").await.unwrap();
        session.call(&wait, (1, gate.id())).await.unwrap();
        let (queued, stalled) = call_until_error(&session, &add_one).await;
        assert!(queued >= 1023, "{queued} calls fit behind a stuck worker");
        assert_eq!(
            stalled,
            "worker 1 took no command for 200ms and its lane is full: \
             finished command 2, in command 3, inside `tests.wait_on`"
        );
        let stuck = text(session.shutdown().await);
        assert!(stuck.starts_with("not stopped after "), "{stuck}");
        assert!(stuck.contains("worker 1") && stuck.contains("inside `tests.wait_on`"), "{stuck}");
        assert!(!stuck.contains("worker 0") && !stuck.contains("worker 2"), "{stuck}");
        gate.open();
    });
}

#[test]
fn calls_behind_a_stuck_worker_name_it_and_not_the_workers_that_wait_for_it() {
    let session = Builder::threads(3).deadlines(impatient()).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        session.init_ccl("local", &[]).await.unwrap();
        let wait = session.function("tests.wait_at_barrier").await.unwrap();
        let add_one = session.function("tests.add_one").await.unwrap();
        session.call(&wait, (2, gate.id())).await.unwrap();
        let (_, stalled) = call_until_error(&session, &add_one).await;
        assert_eq!(
            stalled,
            "worker 2 took no command for 200ms and its lane is full: \
             finished command 5, in command 6, inside `tests.wait_at_barrier`"
        );
        gate.open();
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
}

#[test]
fn a_future_that_nobody_polls_any_more_holds_up_nobody() {
    let session = Builder::threads(2).deadlines(impatient()).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        let wait = session.function("tests.wait_on").await.unwrap();
        let add_one = session.function("tests.add_one").await.unwrap();
        session.call(&wait, (1, gate.id())).await.unwrap();
        call_until_error(&session, &add_one).await;
        let mut forgotten = std::pin::pin!(session.call(&add_one, (0,)));
        assert!(poll_once(forgotten.as_mut()).is_none());
        let stalled = text(session.sync_all().await);
        assert!(stalled.starts_with("worker 1 took no command for 200ms and its lane is full"), "{stalled}");
        gate.open();
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
        assert_eq!(text(forgotten.await), "call: the session is shut down");
    });
}

#[test]
fn shutdown_names_who_is_stuck_and_not_who_waits_for_it() {
    let session = Builder::threads(3).deadlines(impatient()).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        session.init_ccl("local", &[]).await.unwrap();
        let stuck = session.function("tests.wait_at_barrier").await.unwrap();
        session.call(&stuck, (2, gate.id())).await.unwrap();
        assert_eq!(
            text(session.shutdown().await),
            "not stopped after 200ms: worker 2 (finished command 4, in command 5, inside `tests.wait_at_barrier`; detached)"
        );
        gate.open();
    });
}

#[test]
fn the_first_failure_is_the_one_that_sync_reports_too() {
    let session = threads(3);
    block_on(async {
        let fail = session.function("tests.fail_in_turn").await.unwrap();
        session.call(&fail, ()).await.unwrap();
        let sync = text(session.sync_all().await);
        assert!(sync.starts_with("worker 2: tests.fail_in_turn "), "{sync}");
        let earlier = session.call(&fail, ()).await.unwrap_err();
        assert_eq!(earlier.failure().unwrap().to_string(), sync);
        session.shutdown().await.unwrap();
    });
}

#[test]
fn workers_that_do_not_come_to_init_ccl_are_named_at_the_deadline_for_connecting() {
    let session = Builder::threads(3).connect_deadline(Duration::from_millis(200)).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        let wait = session.function("tests.wait_on").await.unwrap();
        session.call(&wait, (1, gate.id())).await.unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Calls are refused once the other ranks have given up. No worker has this number.
                for _ in 0..1000 {
                    if block_on(session.call(&wait, (9, gate.id()))).is_err() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
                gate.open();
            });
            text(block_on(session.init_ccl("local", &[])))
        });
        assert!(error.contains("connect: no end after 200ms: rank 1 has not come"), "{error}");
        session.shutdown().await.unwrap();
    });
}

/// How many calls were taken, and why no more were.
async fn call_until_error(session: &LaneSession, function: &disco::DRef) -> (usize, String) {
    for queued in 0.. {
        if let Err(error) = session.call(function, (1,)).await {
            return (queued, error.to_string());
        }
    }
    unreachable!("the loop has no end")
}

/// Polls a future one time.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn a_submit_that_is_dropped_while_it_waits_has_changed_nothing() {
    let session = threads(2);
    block_on(async {
        let gate = Gate::new();
        let wait = session.function("tests.wait_on").await.unwrap();
        let add_one = session.function("tests.add_one").await.unwrap();
        session.call(&wait, (0, gate.id())).await.unwrap();
        let mut handles = Vec::new();
        while let Some(handle) = poll_once(std::pin::pin!(session.call(&add_one, (0,)))) {
            handles.push(handle.unwrap());
        }
        gate.open();
        session.sync_all().await.unwrap();
        let last = handles.last().unwrap();
        let next = session.call(&add_one, (last,)).await.unwrap();
        assert_eq!(session.get(&next, WorkerId::new(1)).await.unwrap(), Value::Int(2));
        assert_eq!(next.register().index(), last.register().index() + 1, "no register was spent");
        session.shutdown().await.unwrap();
    });
}

#[test]
fn a_call_past_its_deadline_names_worker_and_function() {
    let session = Builder::threads(2).call_deadline(Duration::from_millis(200)).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        let wait = session.function("tests.wait_on").await.unwrap();
        session.call(&wait, (1, gate.id())).await.unwrap();
        assert_eq!(
            text(session.sync_all().await),
            "sync_all: no end after 200ms: worker 1 does not answer: \
             finished command 1, in command 2, inside `tests.wait_on`"
        );
        gate.open();
        session.shutdown().await.unwrap();
    });
}

/// What `tracing` says on this thread while `work` runs.
fn logged(work: impl FnOnce()) -> String {
    let (read, write) = std::io::pipe().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || write.try_clone().unwrap());
    tracing::subscriber::with_default(subscriber.finish(), work);
    std::io::read_to_string(read).unwrap()
}

#[test]
fn a_wait_without_a_limit_warns_of_the_function_that_does_not_return() {
    let deadlines = Deadlines::default().with_warn(Duration::from_millis(200));
    let session = Builder::threads(3).deadlines(deadlines).start().unwrap();
    let log = logged(|| {
        block_on(async {
            let gate = Gate::new();
            session.init_ccl("local", &[]).await.unwrap();
            let wait = session.function("tests.wait_at_barrier").await.unwrap();
            session.call(&wait, (2, gate.id())).await.unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(900));
                    gate.open();
                });
                // Worker 0 waits for worker 2.
                block_on(session.sync_worker_0()).unwrap();
            });
            session.shutdown().await.unwrap();
        });
    });
    let warning = "sync_worker has waited 200ms for worker 2 inside `tests.wait_at_barrier` for 200ms; no `call_deadline` is \
                   set, so that the wait has no limit\n";
    assert!(log.contains("WARN") && log.contains(warning), "{log}");
    assert!(log.matches("sync_worker has waited ").count() >= 2 && !log.contains("worker 0 inside"), "{log}");
}

#[test]
fn a_wait_for_a_worker_inside_a_collective_names_the_worker_that_it_waits_for() {
    let session = Builder::threads(3).call_deadline(Duration::from_millis(300)).start().unwrap();
    let log = logged(|| {
        block_on(async {
            let gate = Gate::new();
            session.init_ccl("local", &[]).await.unwrap();
            let wait = session.function("tests.wait_at_barrier").await.unwrap();
            session.call(&wait, (2, gate.id())).await.unwrap();
            let inside = "in command 5, inside `tests.wait_at_barrier`";
            assert_eq!(
                text(session.sync_worker_0().await),
                format!(
                    "sync_worker: no end after 300ms: worker 2 does not answer: finished command 4, {inside}; \
                     worker 0 does not answer: finished command 4, {inside}, in barrier (operation 1)"
                )
            );
            let start = std::time::Instant::now();
            let stuck = text(session.shutdown().await);
            assert!(stuck.starts_with("not stopped after 3s: worker 2 ("), "{stuck}");
            assert!(start.elapsed() < Duration::from_secs(10), "after {:?}", start.elapsed());
            gate.open();
        });
    });
    let warning = "shutdown has waited 2s for worker 2 (finished command 4, in command 5, inside `tests.wait_at_barrier`); \
                   it gives up after 3s (`Deadlines::close`)\n";
    assert!(log.contains(warning), "{log}");
}

#[test]
fn the_limit_for_calls_does_not_cut_init_ccl_short() {
    let session = Builder::threads(2).call_deadline(Duration::from_millis(500)).start().unwrap();
    block_on(async {
        // Worker 1 comes late, by several calls that are each in time.
        let sleep = session.function("tests.sleep_on").await.unwrap();
        for _ in 0..9 {
            session.call(&sleep, (1, 100)).await.unwrap();
        }
        session.init_ccl("local", &[]).await.unwrap();
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
}

#[test]
fn integers_that_do_not_fit_are_errors_with_their_value() {
    let session = threads(1);
    block_on(async {
        let count = session.function("tests.count_up").await.unwrap();
        let two = session.call(&count, (1usize,)).await.unwrap();
        assert_eq!(session.get_as::<usize>(&two, WorkerId::new(0)).await.unwrap(), 2);
        let error = text(session.call(&count, (u64::MAX,)).await);
        assert_eq!(error, "call: argument 0: 18446744073709551615 does not fit in i64");
        let minus = session.call(&session.function("tests.add_one").await.unwrap(), (-2,)).await.unwrap();
        let error = text(session.get_as::<usize>(&minus, WorkerId::new(0)).await);
        assert_eq!(error, "get: expected an unsigned int, worker 0 has an int: -1 does not fit in usize");
        session.call(&count, (&minus,)).await.unwrap();
        let error = text(session.sync_all().await);
        assert!(
            error.ends_with("): argument 0: expected an unsigned int, got an int: -1 does not fit in usize"),
            "{error}"
        );
        session.recover().await.unwrap();
        session.call(&session.function("tests.huge").await.unwrap(), ()).await.unwrap();
        let error = text(session.sync_all().await);
        assert!(error.ends_with("): 9223372036854775808 does not fit in i64"), "{error}");
        session.shutdown().await.unwrap();
    });
}

#[test]
fn four_threads_share_one_session() {
    let session = Arc::new(threads(3));
    let workers: Vec<_> = (0..4i64)
        .map(|thread| {
            let session = session.clone();
            std::thread::spawn(move || {
                block_on(async {
                    let add_one = session.function("tests.add_one").await.unwrap();
                    for round in 0..300 {
                        let x = session.call(&add_one, (thread * 1000 + round,)).await.unwrap();
                        let x = session.call(&add_one, (&x,)).await.unwrap();
                        if round % 50 == 0 {
                            session.sync_all().await.unwrap();
                        }
                        let worker = WorkerId::new((round % 3) as u32);
                        assert_eq!(session.get_as::<i64>(&x, worker).await.unwrap(), thread * 1000 + round + 2);
                    }
                });
            })
        })
        .collect();
    workers.into_iter().for_each(|thread| thread.join().unwrap());
    block_on(session.shutdown()).unwrap();
}
