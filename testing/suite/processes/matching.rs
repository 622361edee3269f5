//! Programs that match the fields of errors rather than their texts.

use disco::error::{ErrorKind, Memory};
use disco::{Builder, Error, LaneSession, WorkerContext, WorkerId};

use crate::with_session::with_session;

super::tests!(a_program_matches_the_kind_of_a_worker_s_error,);

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
