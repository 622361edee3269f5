//! Results that a call sends while it runs.

use std::collections::BTreeSet;
use std::time::Duration;

use disco::error::ErrorKind;
use disco::function::BoxError;
use disco::{Error, IntoArgs, LaneSession, Result, Results, Tensor, Value, WorkerContext, WorkerId, block_on};
use disco_conformance::waiting::wait_until_inside;
use futures_lite::StreamExt as _;

use super::{Kind, builder};
use crate::with_session::with_session;

super::tests![
    large_and_small_results_arrive_in_order_also_the_last_and_before_a_failure,
    a_worker_waits_once_the_controller_has_left_16_results,
    a_failure_is_the_last_result,
    a_lost_worker_ends_the_stream,
    a_cancellation_is_the_last_result,
    a_dropped_stream_cancels_the_call,
    a_shutdown_cancels_the_call_although_its_results_are_not_taken,
    results_that_are_not_taken_before_a_recovery_end_with_an_error,
    a_result_that_is_not_taken_is_an_error_after_the_deadline,
    a_call_without_a_stream_drops_what_it_emits,
    results_are_a_stream,
];

disco::register_function!("tests.emit", emit);
disco::register_function!("tests.emit_ahead", emit_ahead);
disco::register_function!("tests.emit_and_exit", emit_and_exit);
disco::register_function!("tests.emit_sizes", emit_sizes);
disco::register_function!("tests.emit_until", emit_until);
disco::register_function!("tests.store_entry", store_entry);

/// Emits `count` numbers on some workers, then fails on one. Returns the number of the worker.
fn emit(ctx: &mut WorkerContext, count: i64, failing: u32) -> Result<i64, BoxError> {
    let worker = ctx.worker().wire();
    if worker != 1 {
        for number in 0..count {
            ctx.emit(1000 * worker + number)?;
        }
    }
    if ctx.worker() == failing.into() { Err("out of luck".into()) } else { Ok(worker) }
}

/// Emits as fast as it can, and counts its results in the store. Worker 0 also sends a large tensor.
fn emit_ahead(ctx: &mut WorkerContext, count: i64) -> Result<()> {
    let (store, key) = (ctx.store(), format!("emitted {}", ctx.worker().index()));
    if ctx.worker().index() == 0 {
        ctx.emit(Tensor::from_vec((0..2_000_000i32).collect(), 2_000_000)?)?;
    }
    for number in 0..count {
        store.add(&key, 1)?;
        ctx.emit(number)?;
    }
    Ok(())
}

/// Emits texts of these sizes, then fails on one worker.
fn emit_sizes(ctx: &mut WorkerContext, sizes: Vec<i64>, failing: u32) -> Result<(), BoxError> {
    for size in sizes {
        ctx.emit("x".repeat(size as usize))?;
    }
    if ctx.worker() == failing.into() { Err("out of luck".into()) } else { Ok(()) }
}

/// Emits until it can not any more, and returns the error.
fn emit_until(ctx: &mut WorkerContext) -> Result<String> {
    loop {
        if let Err(error) = ctx.emit(0) {
            return Ok(error.to_string());
        }
    }
}

/// A streaming call of a function by its name.
async fn stream<'s>(session: &'s LaneSession, function: &str, args: impl IntoArgs + Send) -> Result<Results<'s>> {
    session.call_streaming(function, args).await
}

/// Emits a number, and ends the process of one worker.
fn emit_and_exit(ctx: &mut WorkerContext, worker: u32) -> Result<()> {
    ctx.emit(ctx.worker().wire())?;
    if ctx.worker() == worker.into() { std::process::exit(7) } else { Ok(()) }
}

/// The number under a key of the store.
fn store_entry(ctx: &mut WorkerContext, key: String) -> Result<i64> {
    ctx.store().add(&key, 0)
}

fn large_and_small_results_arrive_in_order_also_the_last_and_before_a_failure(kind: Kind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        for (sizes, failing) in
            [(vec![8 << 20], 9), (vec![500_000, 1, 300_000, 2], 9), (vec![1, 900_000], 2), (vec![4 << 20], 2)]
        {
            let mut results = stream(&session, "tests.emit_sizes", (sizes.clone(), failing)).await.unwrap();
            let (mut got, mut last) = ([(); 4].map(|()| Vec::new()), None);
            while let Some(result) = results.next().await {
                match result {
                    Ok((worker, Value::Str(text))) => got[worker.index()].push(text.len() as i64),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => last = Some(error.to_string()),
                }
            }
            drop(results);
            assert_eq!(last.is_some(), failing == 2, "{last:?}");
            let aborted = |worker: usize| failing == 2 && worker != 2;
            for (worker, got) in got.into_iter().enumerate() {
                assert!(
                    if aborted(worker) { sizes.starts_with(&got) } else { got == sizes },
                    "worker {worker}: {got:?}"
                );
            }
            session.recover().await.unwrap();
        }
        session.shutdown().await.unwrap();
    });
}

fn a_worker_waits_once_the_controller_has_left_16_results(kind: Kind) {
    let other = builder(kind).start().unwrap();
    with_session(builder(kind), async |session| {
        let mut results = stream(session, "tests.emit_ahead", (50,)).await.unwrap();
        let (mut tensor, mut numbers) = (None, [(); 4].map(|()| Vec::new()));
        while let Some(result) = results.next().await {
            match result.unwrap() {
                (worker, Value::Tensor(large)) => tensor = Some((worker, large)),
                (worker, Value::Int(number)) => numbers[worker.index()].push(number),
                other => panic!("{other:?}"),
            }
        }
        let (worker, tensor) = tensor.unwrap();
        assert_eq!((worker, tensor.elements()), (WorkerId::new(0), 2_000_000));
        assert!(tensor.to_vec::<i32>().unwrap().into_iter().eq(0..2_000_000));
        assert_eq!(numbers, [(); 4].map(|()| (0..50).collect::<Vec<i64>>()));
    });
    // One result of each worker is taken, and no other one: each worker stands before result 17.
    block_on(async {
        let mut results = stream(&other, "tests.emit_ahead", (50,)).await.unwrap();
        let mut taken = [0; 4];
        while taken.contains(&0) {
            taken[results.next().await.unwrap().unwrap().0.index()] += 1;
        }
        drop(results);
        other.sync_all().await.unwrap();
        for (worker, taken) in taken.into_iter().enumerate() {
            let emitted = other.call("tests.store_entry", (format!("emitted {worker}"),)).await.unwrap();
            let emitted: i64 = other.get(&emitted, WorkerId::new(0)).await.unwrap();
            assert!(emitted <= taken + 17, "worker {worker}: {emitted} with {taken} taken");
        }
        other.shutdown().await.unwrap();
    });
}

fn a_failure_is_the_last_result(kind: Kind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        let mut results = stream(&session, "tests.emit", (3, 2)).await.unwrap();
        let (mut last, mut of_2) = (None, 0);
        while let Some(result) = results.next().await {
            assert!(last.is_none(), "the error is the last one");
            match result {
                Ok((worker, _)) => of_2 += usize::from(worker == WorkerId::new(2)),
                Err(error) => last = Some(error),
            }
        }
        assert_eq!(of_2, 3, "the results before the failure");
        let error = last.unwrap().to_string();
        assert!(error.starts_with("worker 2: tests.emit (command ") && error.ends_with("): out of luck"), "{error}");
        drop(results);
        session.recover().await.unwrap();
        let results = stream(&session, "tests.emit", (1, 9)).await.unwrap();
        drop(results);
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
}

fn a_lost_worker_ends_the_stream(kind: Kind) {
    if matches!(kind, Kind::Threads | Kind::Nodes) {
        return; // The worker is a thread of the program, or shares its process with others.
    }
    let session = builder(kind).start().unwrap();
    block_on(async {
        let mut results = stream(&session, "tests.emit_and_exit", (3,)).await.unwrap();
        let error = loop {
            match results.next().await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error.kind(), ErrorKind::Lost { .. }), "{error}");
        assert!(results.next().await.is_none());
        drop(results);
        session.replace_lost().await.unwrap();
        let mut results = stream(&session, "tests.emit", (1, 9)).await.unwrap();
        while let Some(result) = results.next().await {
            result.unwrap();
        }
        drop(results);
        session.shutdown().await.unwrap();
    });
}

fn a_cancellation_is_the_last_result(kind: Kind) {
    with_session(builder(kind), async |session| {
        let mut results = stream(session, "tests.emit_ahead", (1000,)).await.unwrap();
        assert!(results.next().await.unwrap().is_ok());
        session.cancel(&results.call().clone(), "enough").unwrap();
        let error = loop {
            match results.next().await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        assert!(results.next().await.is_none());
        drop(results);
        session.sync_all().await.unwrap();
    });
}

fn a_dropped_stream_cancels_the_call(kind: Kind) {
    with_session(builder(kind), async |session| {
        let mut results = stream(session, "tests.emit_until", ()).await.unwrap();
        let call = results.call().clone();
        // All workers have begun.
        let mut begun = BTreeSet::new();
        while begun.len() < 4 {
            begun.insert(results.next().await.unwrap().unwrap().0);
        }
        drop(results);
        let ends = session.get_all::<String>(&call).await.unwrap();
        assert_eq!(ends, [(); 4].map(|()| "cancelled: the stream of its results is dropped".to_owned()));
    });
}

fn a_shutdown_cancels_the_call_although_its_results_are_not_taken(kind: Kind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        let mut results = stream(&session, "tests.emit", (i64::MAX, 9)).await.unwrap();
        assert!(results.next().await.unwrap().is_ok());
        // An error if workers do not leave.
        session.shutdown().await.unwrap();
        let error = loop {
            match results.next().await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(error.to_string().ends_with("cancelled: the session is shut down"), "{error}");
        assert!(results.next().await.is_none());
    });
}

fn results_that_are_not_taken_before_a_recovery_end_with_an_error(kind: Kind) {
    with_session(builder(kind), async |session| {
        let mut results = stream(session, "tests.emit", (2, 3)).await.unwrap();
        let failed = session.sync_all().await.unwrap_err();
        session.recover().await.unwrap();
        let (mut count, mut last) = (0, None);
        while let Some(result) = results.next().await {
            match result {
                // Those of the others may come after the failure.
                Ok((worker, _)) => count += usize::from(worker == WorkerId::new(3)),
                Err(error) => last = Some(error.to_string()),
            }
        }
        assert_eq!(count, 2, "{failed}");
        assert!(last.as_ref().is_some_and(|error| failed.to_string().starts_with(error)), "{last:?}: {failed}");
    });
}

fn a_result_that_is_not_taken_is_an_error_after_the_deadline(kind: Kind) {
    with_session(builder(kind).collective_deadline(Duration::from_millis(400)), async |session| {
        let mut results = stream(session, "tests.emit_until", ()).await.unwrap();
        let call = results.call().clone();
        let ends = session.get_all::<String>(&call).await.unwrap();
        let expected = "emit of result 16: no end after 400ms: the controller has not taken result 0";
        assert_eq!(ends, [(); 4].map(|()| expected.to_owned()));
        // The results before are still there.
        let mut count = 0;
        while let Some(result) = results.next().await {
            assert_eq!(result.unwrap().1, Value::Int(0));
            count += 1;
        }
        assert_eq!(count, 4 * 16);
    });
}

fn a_call_without_a_stream_drops_what_it_emits(kind: Kind) {
    with_session(builder(kind), async |session| {
        let emit = session.function("tests.emit").await.unwrap();
        let plain = session.call(&emit, (100, 9)).await.unwrap();
        assert_eq!(session.get_all::<i64>(&plain).await.unwrap(), [0, 1, 2, 3]);
        assert!(matches!(stream(session, "tests.emti", (1, 9)).await, Err(Error::UnknownFunction { .. })));
        // Also after a streaming call.
        let mut results = stream(session, "tests.emit", (1, 9)).await.unwrap();
        while results.next().await.is_some() {}
        drop(results);
        let one = session.call_on([2], &emit, (100, 9)).await.unwrap();
        assert_eq!(session.get::<i64>(&one, WorkerId::new(2)).await.unwrap(), 2);
        // A cancellation ends such a call, too.
        let endless = session.call("tests.emit_until", ()).await.unwrap();
        wait_until_inside(session, "tests.emit_until", 0..4);
        session.cancel(&endless, "enough").unwrap();
        let ends = session.get_all::<String>(&endless).await.unwrap();
        assert_eq!(ends, [(); 4].map(|()| "cancelled: enough"));
    });
}

fn results_are_a_stream(kind: Kind) {
    with_session(builder(kind), async |session| {
        let results = stream(session, "tests.emit", (100, 9)).await.unwrap();
        let of_worker_2 = results.map(Result::unwrap).filter(|(worker, _)| *worker == WorkerId::new(2));
        let values: Vec<Value> = of_worker_2.map(|(_, value)| value).collect().await;
        assert!(values.into_iter().eq((2000..2100).map(Value::Int)));
    });
}
