//! Extreme limits: a session works, or returns an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use disco::{Builder, Deadlines, Result, WorkerId, block_on};

use super::{Kind, SOON, within};

super::tests!(
    limits_of_the_maximum_duration_never_expire,
    limits_of_zero_neither_panic_nor_hang,
    worlds_that_are_too_large_or_empty_are_rejected,
);

const MAX: Duration = Duration::MAX;

fn all(limit: Duration) -> Deadlines {
    Deadlines::default().with_reply(limit).with_call(limit).with_collective(limit).with_stall(limit).with_close(limit)
}

/// Starts a session, uses it and shuts it down. Panics if that panics or takes too long.
fn run(name: &'static str, builder: impl FnOnce() -> Builder + Send + 'static) -> Result<i64> {
    let work = || {
        let session = builder().start()?;
        block_on(async {
            if session.world().nodes() == 1 {
                session.init_ccl("local", &[]).await?;
            }
            let count = session.call("tests.count", (1,)).await?;
            let number = session.get(&count, WorkerId::new(session.world().size() as u32 - 1)).await?;
            session.shutdown().await.map(|()| number)
        })
    };
    let ran = within(3 * SOON, name, move || catch_unwind(AssertUnwindSafe(work)).map_err(drop));
    ran.unwrap_or_else(|()| panic!("{name}: panicked"))
}

fn limits_of_the_maximum_duration_never_expire(kind: Kind) {
    let of = move || kind.builder(2);
    for (name, result) in [
        ("collective_deadline", run("collective_deadline", move || of().collective_deadline(MAX))),
        ("connect_deadline", run("connect_deadline", move || of().connect_deadline(MAX))),
        ("start_deadline", run("start_deadline", move || of().start_deadline(MAX))),
        ("silence", run("silence", move || of().silence(MAX))),
        ("heartbeat", run("heartbeat", move || of().silence(MAX).heartbeat(MAX / 2))),
        ("call_deadline", run("call_deadline", move || of().deadlines(Deadlines::default().with_call(MAX)))),
        ("deadlines", run("deadlines", move || of().deadlines(all(MAX)))),
    ] {
        assert_eq!(result.unwrap_or_else(|error| panic!("{name}: {error}")), 2, "{name}");
    }
}

fn limits_of_zero_neither_panic_nor_hang(kind: Kind) {
    let of = move || kind.builder(2);
    // A limit of 0 may still be met.
    for result in [
        run("deadlines", move || of().deadlines(all(Duration::ZERO))),
        run("connect_deadline", move || of().connect_deadline(Duration::ZERO)),
        run("collective_deadline", move || of().collective_deadline(Duration::ZERO)),
        run("silence", move || of().silence(Duration::from_millis(1))),
        run("start_deadline", move || of().start_deadline(Duration::ZERO)),
    ] {
        assert!(result.is_err() || matches!(result, Ok(2)), "{result:?}");
    }
    if kind != Kind::Threads {
        let error = run("heartbeat", move || of().heartbeat(Duration::ZERO)).unwrap_err().to_string();
        assert!(error.starts_with("the heartbeat interval 0ns must be above 0 "), "{error}");
    }
}

fn worlds_that_are_too_large_or_empty_are_rejected(kind: Kind) {
    for workers in [0, 70_001, u32::MAX as usize, 1 << 32, 1 << 63, usize::MAX] {
        run("workers", move || kind.builder(workers)).unwrap_err();
    }
    if kind.is_nodes() {
        for (nodes, per_node) in [(1 << 63, 2), (2, 1 << 63), (usize::MAX, usize::MAX), (0, 2), (3, 0)] {
            run("nodes", move || Builder::nodes(nodes, per_node)).unwrap_err();
        }
    }
}
