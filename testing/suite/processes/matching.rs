//! Programs that match the fields of errors rather than their texts.

use disco::error::{ErrorKind, LossCause, LostPeer, Memory, ProcessEnd};
use disco::{Builder, Error, LaneSession, Value, WorkerContext, WorkerId, WorkerRange, block_on};
use rustix::process::{Pid, Signal, kill_process};

use crate::with_session::with_session;

super::tests!(
    a_program_matches_the_loss_of_a_killed_worker_and_starts_a_new_session,
    a_program_matches_the_kind_of_a_worker_s_error,
    the_kind_of_a_panic_is_panicked,
);

disco::register_function!("tests.fail_as_a_library", fail_as_a_library);
disco::register_function!("tests.fail_without_memory", fail_without_memory);
disco::register_function!("tests.fail_as_the_system", fail_as_the_system);

/// Fails on worker 1 with an error of a made-up vendor library.
fn fail_as_a_library(ctx: &mut WorkerContext) -> disco::Result<()> {
    if ctx.worker() == WorkerId::new(1) {
        Err(Error::Library {
            backend: "made-up",
            function: "madeUpAllReduce",
            code: 5,
            message: "invalid usage".into(),
        })
    } else {
        Ok(())
    }
}

fn fail_without_memory(ctx: &mut WorkerContext) -> disco::Result<()> {
    if ctx.worker() == WorkerId::new(1) {
        Err(Error::OutOfMemory { bytes: 1 << 40, memory: Memory::Host, why: None })
    } else {
        Ok(())
    }
}

fn fail_as_the_system(ctx: &mut WorkerContext) -> std::io::Result<()> {
    if ctx.worker() == WorkerId::new(1) { std::fs::read("/no/such/weights").map(drop) } else { Ok(()) }
}

/// Calls a function on all workers and waits for it.
async fn call(session: &LaneSession, name: &str) -> disco::Result<()> {
    session.call(name, ()).await?;
    session.sync_all().await
}

async fn pid_of(session: &LaneSession, worker: u32) -> Pid {
    let pids = session.call("tests.pid", ()).await.unwrap();
    let Value::Int(pid) = session.value(&pids, WorkerId::new(worker)).await.unwrap() else { panic!() };
    Pid::from_raw(pid as i32).unwrap()
}

/// Works on a session until a round succeeds, and starts a new session each time a worker was killed. Returns the
/// killed workers.
async fn work(mut session: LaneSession, mut harm: impl AsyncFnMut(&LaneSession, usize)) -> Vec<WorkerRange> {
    let mut killed = Vec::new();
    for round in 0.. {
        harm(&session, round).await;
        match session.sync_all().await {
            Ok(()) => break,
            Err(Error::Lost(loss)) => match (&loss.peer, &loss.cause) {
                (
                    LostPeer::Workers { workers, node: None, .. },
                    LossCause::ProcessEnded { end: ProcessEnd::Signaled { signal: 9, .. }, connected: true, .. },
                ) => {
                    killed.push(*workers);
                    session.shutdown().await.unwrap();
                    session = Builder::processes(3).start().unwrap();
                }
                other => panic!("{other:?}"),
            },
            Err(other) => panic!("{other}"),
        }
    }
    session.shutdown().await.unwrap();
    killed
}

fn a_program_matches_the_loss_of_a_killed_worker_and_starts_a_new_session() {
    let session = Builder::processes(3).start().unwrap();
    let killed = block_on(work(session, async |session, round| {
        if let Some(victim) = [2, 1].get(round) {
            kill_process(pid_of(session, *victim).await, Signal::KILL).unwrap();
        }
    }));
    assert_eq!(killed, [WorkerRange::new(2..3), WorkerRange::new(1..2)]);
}

fn a_program_matches_the_kind_of_a_worker_s_error() {
    let library = ErrorKind::Library { backend: "made-up".into(), function: "madeUpAllReduce".into(), code: 5 };
    let cases = [
        ("tests.fail_as_a_library", library),
        ("tests.fail_without_memory", ErrorKind::OutOfMemory { bytes: 1 << 40 }),
        // ENOENT.
        ("tests.fail_as_the_system", ErrorKind::System { code: Some(2) }),
    ];
    with_session(Builder::processes(2), async |session| {
        for (function, kind) in cases {
            let Err(Error::Worker(failure)) = call(session, function).await else { panic!() };
            assert_eq!((failure.worker, &*failure.operation, failure.aborted), (WorkerId::new(1), function, false));
            assert_eq!((&failure.kind, Error::Worker(failure.clone()).kind()), (&kind, kind.clone()));
            session.recover().await.unwrap();
        }
    });
}

fn the_kind_of_a_panic_is_panicked() {
    with_session(Builder::processes(3), async |session| {
        session.call("tests.panic", (2,)).await.unwrap();
        let error = session.sync_all().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
    });
}
