//! Calls whose result one worker returns with the call's reply.

use std::sync::Arc;

use disco::{Error, Result, Value, WorkerContext, block_on};

use super::{Kind, SOON, builder, within};

super::tests!(
    a_worker_returns_its_result_in_one_command,
    results_come_in_any_order_and_large_ones_too,
    a_failed_call_returns_the_failure,
    results_that_nobody_awaits_yet_come_or_end,
);

fn text(ctx: &mut WorkerContext, bytes: usize) -> Result<String> {
    Ok(ctx.worker().index().to_string().repeat(bytes))
}

fn refuse(ctx: &mut WorkerContext, worker: u32) -> Result<i64> {
    if ctx.worker() == worker.into() { Err(Error::invalid("not today")) } else { Ok(1) }
}

disco::register_function!("returned.text", text);
disco::register_function!("returned.refuse", refuse);

fn a_worker_returns_its_result_in_one_command(kind: Kind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        let text = session.function("returned.text").await.unwrap();
        let before = session.status().commands;
        for worker in 0..4 {
            let returned = session.call_returning(worker, &text, (3,)).await.unwrap().await.unwrap();
            assert_eq!(returned, Value::from(worker.to_string().repeat(3)), "{worker}");
        }
        assert_eq!(session.status().commands, before + 4);
        let by_name = session.call_returning(1, "returned.text", (1,)).await.unwrap();
        assert_eq!(by_name.await.unwrap(), Value::from("1"));
        let error = session.call_returning(4, &text, (3,)).await.unwrap_err();
        assert!(matches!(error, Error::NoSuchWorker { .. }), "{error}");
        // The result stays on no worker, and the session goes on.
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
}

fn results_come_in_any_order_and_large_ones_too(kind: Kind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        let sizes = [1, 100_000, 2, 3 << 20, 3];
        let mut all = Vec::new();
        for size in sizes {
            all.push((size, session.call_returning(3, "returned.text", (size,)).await.unwrap()));
        }
        // One is not awaited.
        drop(all.remove(2));
        for (size, returned) in all.into_iter().rev() {
            let Value::Str(text) = returned.await.unwrap() else { panic!() };
            assert!(*text == *"3".repeat(size), "{size}");
        }
        let argument = vec![7u8; 1 << 20];
        let echoed = session.call_returning(2, "tests.echo", (argument.clone(),)).await.unwrap();
        assert_eq!(echoed.await.unwrap(), Value::from(argument));
        session.shutdown().await.unwrap();
    });
}

fn a_failed_call_returns_the_failure(kind: Kind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        let returned = session.call_returning(2, "returned.refuse", (2,)).await.unwrap();
        let failed = |error: &str, worker: u32| {
            assert!(error.contains(&format!("worker {worker}: returned.refuse (command ")), "{error}");
            assert!(error.contains("): not today"), "{error}");
        };
        failed(&returned.await.unwrap_err().to_string(), 2);
        session.recover().await.unwrap();
        // Another worker fails: the one that replies has a result.
        let returned = session.call_returning(2, "returned.refuse", (1,)).await.unwrap();
        assert_eq!(returned.await.unwrap(), Value::Int(1));
        failed(&session.sync_all().await.unwrap_err().to_string(), 1);
        failed(&session.call_returning(2, "returned.refuse", (1,)).await.unwrap_err().to_string(), 1);
        session.recover().await.unwrap();
        assert_eq!(session.call_returning(2, "returned.refuse", (9,)).await.unwrap().await.unwrap(), Value::Int(1));
        session.shutdown().await.unwrap();
    });
}

fn results_that_nobody_awaits_yet_come_or_end(kind: Kind) {
    let session = Arc::new(builder(kind).start().unwrap());
    within(3 * SOON, "the results", move || {
        block_on(async {
            let large = 3 << 20;
            let text = |worker: &str, size| Value::from(worker.repeat(size));
            // A failure and a recovery leave results that came before.
            let before = session.call_returning(1, "returned.text", (large,)).await.unwrap();
            session.call("returned.refuse", (2,)).await.unwrap();
            session.sync_all().await.unwrap_err();
            session.recover().await.unwrap();
            assert!(before.await.unwrap() == text("1", large));
            // A resize ends those of workers that leave, if they have not come.
            let (stays, leaves) = (
                session.call_returning(0, "returned.text", (large,)).await.unwrap(),
                session.call_returning(3, "returned.text", (large,)).await.unwrap(),
            );
            session.resize(2).await.unwrap();
            assert!(stays.await.unwrap() == text("0", large));
            match leaves.await {
                Ok(value) => assert!(value == text("3", large)),
                Err(error) => {
                    assert_eq!(error.to_string(), "call: worker 3 left the session before the result came")
                }
            }
            let last = session.call_returning(1, "returned.text", (large,)).await.unwrap();
            session.shutdown().await.unwrap();
            match last.await {
                Ok(value) => assert!(value == text("1", large)),
                Err(error) => assert!(matches!(error, Error::Closed(_)), "{error}"),
            }
        });
    });
}
