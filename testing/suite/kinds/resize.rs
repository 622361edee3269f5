//! Sessions that get another number of workers: the same in all kinds.

use disco::{DType, Deadlines, LaneSession, Placement, Reduction, Scope, Tensor, Value, WorkerId, block_on};
use futures_lite::future;

use super::marker::{Marker, stay};
use super::{Kind, builder, call};

super::tests!(
    workers_that_leave_execute_the_commands_before,
    a_worker_that_hangs_can_not_be_made_to_leave,
    a_failure_that_nobody_has_heard_of_is_an_error_of_a_resize,
    a_failure_that_a_method_has_returned_ends_with_a_resize,
);

/// Checks that each worker knows its number, and that an all-reduce has an exact sum.
fn check(session: &LaneSession, workers: usize) {
    assert_eq!(session.world().size(), workers);
    let numbers = call(session, "tests.whoami", ()).unwrap();
    let numbers: Vec<i64> = block_on(session.get_all(&numbers)).unwrap();
    assert_eq!(numbers, (0..workers as i64).collect::<Vec<_>>());
    assert_eq!(session.status().workers.len(), workers);
    block_on(async {
        for worker in 0..workers as u32 {
            let number = session.call_returning(worker, "tests.whoami", ()).await?.await?;
            assert_eq!(number, Value::Int(worker.into()));
        }
        session.init_ccl("local", &[]).await?;
        let tensor = session.empty(DType::F64, [1000], Placement::All).await?;
        session.set_each(&tensor, |id| Tensor::from_vec(vec![id.index() as f64; 1000], [1000]).unwrap()).await?;
        session.all_reduce(&tensor, &tensor, Reduction::Sum, Scope::World).await?;
        let sums: Tensor = session.get(&tensor, WorkerId::new(workers as u32 - 1)).await?;
        assert_eq!(sums.to_vec::<f64>()?, vec![(workers * (workers - 1) / 2) as f64; 1000]);
        Ok::<_, disco::Error>(())
    })
    .unwrap();
}

fn workers_that_leave_execute_the_commands_before(kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let session = builder(kind).start().unwrap();
    let file = folder.path().join("file");
    // Worker 3 is in a function before it makes the file.
    let inside = stay(&session, 3);
    call(&session, "tests.mark", (3, file.display().to_string())).unwrap();
    let resize = session.resize(2);
    block_on(future::zip(resize, async { drop(inside) })).0.unwrap();
    assert!(file.exists());
    check(&session, 2);
    block_on(session.shutdown()).unwrap();
}

fn a_worker_that_hangs_can_not_be_made_to_leave(kind: Kind) {
    let session =
        builder(kind).deadlines(Deadlines::default().with_call(std::time::Duration::from_millis(300))).start().unwrap();
    let inside = stay(&session, 3);
    let error = block_on(session.resize(2)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("resize: no end after 300ms: worker 3 does not answer: "), "{text}");
    assert!(text.contains("inside `kinds.stay`"), "{text}");
    drop(inside);
    // Nothing has changed.
    block_on(async { while session.sync_all().await.is_err() {} });
    check(&session, 4);
    block_on(session.resize(2)).unwrap();
    check(&session, 2);
    block_on(session.shutdown()).unwrap();
}

/// Makes worker 1 stay inside a function that fails once the returned marker is dropped.
fn fail_later(session: &LaneSession) -> Marker {
    let marker = Marker::new();
    call(session, "tests.stay_and_fail", (1, marker.path())).unwrap();
    marker.wait();
    marker
}

/// The errors of a resize during which worker 1 fails, and of the next wait.
fn errors_of_resize(session: &LaneSession, inside: Marker) -> [String; 2] {
    let (resized, ()) = block_on(future::zip(session.resize(6), async { drop(inside) }));
    let synced = block_on(session.sync_all());
    [resized.unwrap_err().to_string(), synced.unwrap_err().to_string()]
}

fn a_failure_that_nobody_has_heard_of_is_an_error_of_a_resize(kind: Kind) {
    let session = builder(kind).start().unwrap();
    for error in errors_of_resize(&session, fail_later(&session)) {
        assert!(error.contains("worker 1: tests.stay_and_fail") && error.ends_with("no weights"), "{error}");
    }
    // Nothing has changed, and the failure is known now.
    assert_eq!(session.world().size(), 4);
    block_on(session.resize(6)).unwrap();
    check(&session, 6);
    block_on(session.shutdown()).unwrap();
}

fn a_failure_that_a_method_has_returned_ends_with_a_resize(kind: Kind) {
    let session = builder(kind).start().unwrap();
    drop(fail_later(&session));
    block_on(session.sync_all()).unwrap_err();
    block_on(session.resize(2)).unwrap();
    check(&session, 2);
    block_on(session.shutdown()).unwrap();
}
