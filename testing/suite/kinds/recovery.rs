//! Recovery of a session while one worker is still in the epoch before it.

use std::pin::pin;
use std::time::{Duration, Instant};

use disco::{WorkerId, block_on};
use disco_conformance::waiting::{wait_until_in_collective, wait_until_inside};
use futures_lite::future;

use super::{Kind, SOON, builder, call};
use crate::with_session::with_session;

super::tests!(
    a_worker_that_missed_a_recovery_can_not_use_the_store_of_the_new_epoch,
    a_store_obtained_before_a_recovery_does_not_work_after_it,
    workers_reconnect_although_one_enters_the_failed_checked_collective_late,
    new_communicators_end_a_call_that_waits_for_a_rank,
);

fn a_worker_that_missed_a_recovery_can_not_use_the_store_of_the_new_epoch(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let late = call(&session, "tests.late", (0, 3, file.path().display().to_string())).unwrap();
    block_on(async {
        session.sync_worker(WorkerId::new(0)).await.unwrap_err();
        session.recover().await.unwrap();
        let start = Instant::now();
        let marks = session.call("tests.marks", ()).await.unwrap();
        // Workers 0 to 2 are in the new epoch, while worker 3 still waits.
        for worker in 0..3 {
            assert_eq!(session.get::<i64>(&marks, WorkerId::new(worker)).await.unwrap(), 0);
        }
        drop(file);
        let told: String = session.get(&late, WorkerId::new(3)).await.unwrap();
        // A worker process learns of the abort at once, but of the recovery only with the next command.
        let cause = match kind {
            Kind::Processes | Kind::ProcessesApart | Kind::NodesApart => {
                "worker 0: tests.late (command 2, register 1): out of luck"
            }
            Kind::Threads | Kind::Nodes => "the session failed and has recovered since",
        };
        let over = format!("Err(\"aborted, because {cause}\") false");
        assert_eq!(told, format!("{over} {over} true"));
        assert!(start.elapsed() < SOON);
        let marks = session.call("tests.marks", ()).await.unwrap();
        for worker in 0..4 {
            let marks: i64 = session.get(&marks, WorkerId::new(worker)).await.unwrap();
            assert_eq!(marks, 0, "worker 3 changed the store of an epoch that it was not in");
        }
        session.shutdown().await.unwrap();
    });
}

fn a_store_obtained_before_a_recovery_does_not_work_after_it(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let failed = call(&session, "tests.hold", (0,)).unwrap();
    block_on(async {
        session.sync_all().await.unwrap_err();
        drop(failed);
        session.recover().await.unwrap();
        session.sync_all().await.unwrap();
        let works = session.call("tests.held_works", ()).await.unwrap();
        for worker in 1..4 {
            assert!(!session.get::<bool>(&works, WorkerId::new(worker)).await.unwrap(), "worker {worker}");
        }
        session.shutdown().await.unwrap();
    });
}

fn workers_reconnect_although_one_enters_the_failed_checked_collective_late(kind: Kind) {
    if kind.is_nodes() {
        // This program has no backend that reaches several nodes.
        return;
    }
    with_session(builder(kind).check(true).connect_deadline(Duration::from_secs(4)), async |session| {
        session.init_ccl("local", &[]).await.unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        session.call("kinds.late_sum", (0, 3, file.path().display().to_string())).await.unwrap();
        let error = session.sync_worker(WorkerId::new(0)).await.unwrap_err().to_string();
        assert!(error.ends_with("): out of luck"), "{error}");
        let mut init = pin!(session.init_ccl("local", &[]));
        assert!(future::poll_once(&mut init).await.is_none());
        wait_until_inside(session, "disco.init_ccl", 0..3);
        drop(file);
        init.await.unwrap();
        session.sync_all().await.unwrap();
    });
}

fn new_communicators_end_a_call_that_waits_for_a_rank(kind: Kind) {
    with_session(builder(kind), async |session| {
        session.init_ccl("local", &[]).await.unwrap();
        let total = session.function("tests.total").await.unwrap();
        let stuck = session.call_on([0, 1, 2], &total, ()).await.unwrap();
        wait_until_in_collective(session, 0..3);
        session.init_ccl("local", &[]).await.unwrap();
        for worker in 0..3 {
            let error = session.value(&stuck, WorkerId::new(worker)).await.unwrap_err().to_string();
            assert!(error.starts_with(&format!("worker {worker}: tests.total (command ")), "{error}");
        }
        let totals = session.call("tests.total", ()).await.unwrap();
        assert_eq!(session.get_all::<i64>(&totals).await.unwrap(), [10; 4]);
    });
}
