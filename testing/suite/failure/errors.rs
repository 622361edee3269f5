//! The texts of errors of workers, arguments and sessions, and the state of the session afterwards.

use std::time::Duration;

use disco::{Builder, DType, LaneSession, Placement, Reduction, Scope, Tensor, Value, WorkerId, block_on};
use disco_conformance::waiting::wait_until;
use disco_core::status::WorkerStatus;

use super::{call_and_sync, text, threads};
use crate::gate::Gate;
use crate::with_session::with_session;

#[test]
fn an_error_names_worker_function_command_register_and_causes() {
    with_session(Builder::threads(3), async |session| {
        let function = session.function("tests.fail_on").await.unwrap();
        let error = call_and_sync(session, "tests.fail_on", 1).await;
        assert_eq!(
            error,
            "worker 1: tests.fail_on (command 2, register 1): the step failed: invalid digit found in string"
        );
        let fast = session.function("tests.add_one").await.unwrap_err();
        let earlier = |operation| {
            format!(
                "{operation}: not submitted, because an earlier command failed: {error}; `recover` or \
                 `init_ccl` makes the workers forget the failure"
            )
        };
        assert_eq!(fast.to_string(), earlier("function lookup"), "a submission fails at once with the root cause");
        assert_eq!(fast.failure().unwrap().to_string(), error);
        let again = session.copy_to_worker_0(&Tensor::zeros(DType::F32, 1).unwrap(), &function).await;
        assert_eq!(text(again), earlier("copy_to_worker_0"));
        session.recover().await.unwrap();
        session.function("tests.add_one").await.unwrap();
    });
}

#[test]
fn an_argument_of_the_wrong_type_is_an_error_with_its_position() {
    for (expected, args) in [
        ("argument 0: expected an int, got a string", vec![Value::from("one")]),
        ("expected 1 argument, got 0", vec![]),
        ("expected 1 argument, got 2", vec![Value::Int(1), Value::Int(2)]),
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
fn calling_a_register_that_is_no_function_is_an_error_with_its_type() {
    let session = threads(1);
    block_on(async {
        let two = session.call("tests.add_one", (1,)).await.unwrap();
        session.call(&two, ()).await.unwrap();
        let error = text(session.sync_all().await);
        assert_eq!(error, "worker 0: call (command 3, register 2): register 1 holds an int, not a function");
    });
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
fn the_collective_deadline_names_a_rank_that_never_entered() {
    for check in [false, true] {
        let error = never_entered(check);
        assert!(error.contains("tests.barrier_without (command "), "{error}");
        assert!(error.contains("barrier: no end after 300ms: "), "{error}");
        assert!(error.contains("rank 1 has not arrived"), "{error}");
    }
}

/// Calls a function in which one worker fails once the others wait in a barrier or have left it. Returns the text of the error.
async fn fail_beside_barrier(session: &LaneSession, function: &str, worker: usize) -> String {
    session.init_ccl("local", &[]).await.unwrap();
    let gate = Gate::new();
    session.call(function, (worker, gate.id())).await.unwrap();
    let commands = session.status().commands;
    let waits = |it: &WorkerStatus| it.operation.is_some() || it.finished >= commands;
    wait_until("the barrier", || session.status().workers.iter().all(|it| it.worker == worker || waits(it)));
    gate.open();
    text(session.sync_all().await)
}

#[test]
fn peers_of_a_failed_rank_are_aborted_and_sync_all_reports_the_root_cause() {
    with_session(Builder::threads(4), async |session| {
        let error = fail_beside_barrier(session, "tests.fail_beside_barrier", 2).await;
        assert!(error.starts_with("worker 2: tests.fail_beside_barrier (command "), "{error}");
        assert!(error.ends_with("): out of memory"), "{error}");
        for worker in 0..4 {
            let one = text(session.sync_worker(WorkerId::new(worker)).await);
            assert_eq!(one, error, "an aborted worker reports the root cause");
        }
    });
}

#[test]
fn a_communicator_that_a_failing_function_drops_is_not_the_root_cause() {
    with_session(Builder::threads(3), async |session| {
        let error = fail_beside_barrier(session, "tests.fail_after_a_drop", 1).await;
        assert!(error.starts_with("worker 1: tests.fail_after_a_drop (command "), "{error}");
        assert!(error.ends_with("): out of memory"), "{error}");
    });
}

#[test]
fn the_destination_of_a_skipped_call_stays_poisoned_until_it_is_reused() {
    with_session(Builder::threads(1), async |session| {
        let gate = Gate::new();
        let wait = session.function("tests.wait_on").await.unwrap();
        let (fail, add_one) =
            (session.function("tests.fail_on").await.unwrap(), session.function("tests.add_one").await.unwrap());
        // The gate delays the failure until all calls are submitted.
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
        let value = session.value(reused.last().unwrap(), WorkerId::new(0)).await.unwrap();
        assert_eq!(value, Value::Int(2), "the freed register travelled ahead of its reuse");
    });
}

#[test]
fn handles_after_shutdown_and_of_other_sessions_are_rejected() {
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
        // A handle may outlive its session.
        drop(foreign);
    });
}

#[test]
fn a_collective_before_init_ccl_is_an_error_that_names_init_ccl() {
    let session = threads(1);
    block_on(async {
        let x = session.empty(DType::F32, [1], Placement::All).await.unwrap();
        session.all_reduce(&x, &x, Reduction::Sum, Scope::World).await.unwrap();
        let error = text(session.sync_all().await);
        assert!(error.ends_with("no communicator on this worker: call `init_ccl` first"), "{error}");
    });
}

#[test]
fn an_unknown_backend_is_an_error_that_lists_the_available_ones_or_suggests_a_similar_one() {
    let session = threads(1);
    let error = text(block_on(session.init_ccl("ucc", &[])));
    let expected = "backend `ucc` is not available; tried the backends compiled into this program: it has cuda_p2p, local, \
                    mpi, nccl, rccl, rocm_p2p, tcp, test-double-without-all-reduce";
    let advice =
        "a backend of another crate is linked once the program mentions that crate: write `use the_crate as _;`";
    assert_eq!(error, format!("{expected}; {advice}"));
    let misspelled = text(block_on(session.init_ccl("locl", &[])));
    assert_eq!(misspelled, format!("{}; did you mean `local`?", expected.replace("ucc", "locl")));
    assert!(matches!(block_on(session.sync_all()), Ok(())), "nothing was started");
}

#[test]
fn integers_out_of_range_are_errors_with_their_value() {
    with_session(Builder::threads(1), async |session| {
        let count = session.function("tests.count_up").await.unwrap();
        let two = session.call(&count, (1usize,)).await.unwrap();
        assert_eq!(session.get::<usize>(&two, WorkerId::new(0)).await.unwrap(), 2);
        let error = text(session.call(&count, (u64::MAX,)).await);
        assert_eq!(error, "call: argument 0: 18446744073709551615 does not fit in i64");
        let minus = session.call("tests.add_one", (-2,)).await.unwrap();
        let error = text(session.get::<usize>(&minus, WorkerId::new(0)).await);
        assert_eq!(error, "get: expected an unsigned int, worker 0 has an int: -1 does not fit in usize");
        session.call(&count, (&minus,)).await.unwrap();
        let error = text(session.sync_all().await);
        assert!(
            error.ends_with("): argument 0: expected an unsigned int, got an int: -1 does not fit in usize"),
            "{error}"
        );
        session.recover().await.unwrap();
        session.call("tests.huge", ()).await.unwrap();
        let error = text(session.sync_all().await);
        assert!(error.ends_with("): 9223372036854775808 does not fit in i64"), "{error}");
    });
}
