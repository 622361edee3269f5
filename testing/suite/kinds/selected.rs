//! Calls of some workers, and calls with other arguments for each worker.

use disco::error::ErrorKind;
use disco::{DRef, Error, Tensor, Value, WorkerId, block_on};
use disco_conformance::waiting::wait_until_inside;

use super::marker::Marker;
use super::{Kind, builder};
use crate::with_session::with_session;

super::tests![
    only_the_selected_workers_execute_a_call_and_the_others_go_on,
    each_worker_gets_its_own_arguments,
    a_failure_of_a_selected_worker_names_it_and_the_function,
    a_selection_of_missing_or_repeated_workers_is_refused,
];

fn only_the_selected_workers_execute_a_call_and_the_others_go_on(kind: Kind) {
    with_session(builder(kind), async |session| {
        let stay = session.function("kinds.stay").await.unwrap();
        let whoami = session.function("tests.whoami").await.unwrap();
        let marker = Marker::new();
        session.call_on([WorkerId::new(2)], &stay, (2, marker.path())).await.unwrap();
        marker.wait();
        wait_until_inside(session, "kinds.stay", [2]);
        // The others are not kept waiting by worker 2.
        let who = session.call_on([3, 0], &whoami, ()).await.unwrap();
        assert_eq!(session.get::<i64>(&who, WorkerId::new(3)).await.unwrap(), 3);
        assert_eq!(session.value(&who, WorkerId::new(1)).await.unwrap(), Value::None);
        drop(marker);
        assert_eq!(session.get_all::<Option<i64>>(&who).await.unwrap(), [Some(0), None, None, Some(3)]);
        let nobody = session.call_on([0u32; 0], &whoami, ()).await.unwrap();
        assert_eq!(session.values(&nobody).await.unwrap(), [(); 4].map(|()| Value::None));
    });
}

fn each_worker_gets_its_own_arguments(kind: Kind) {
    with_session(builder(kind), async |session| {
        let echo = session.function("tests.echo").await.unwrap();
        let texts = session.call_each(&echo, |worker| (format!("worker {}", worker.index()),)).await.unwrap();
        let expected = ["worker 0", "worker 1", "worker 2", "worker 3"];
        assert_eq!(session.get_all::<String>(&texts).await.unwrap(), expected);
        // Tensors of different sizes, of which the last one is not sent inside the command.
        let tensor = |worker: WorkerId| {
            Tensor::from_vec(vec![worker.wire(); 1 << (6 * worker.index())], 1 << (6 * worker.index()))
        };
        let tensors = session.call_each(&echo, |worker| (tensor(worker).unwrap(),)).await.unwrap();
        for (worker, got) in (0..4).map(WorkerId::new).zip(session.get_all::<Tensor>(&tensors).await.unwrap()) {
            assert_eq!(got.to_vec::<i64>().unwrap(), tensor(worker).unwrap().to_vec::<i64>().unwrap());
        }
        // Handles stand for each worker's own object.
        let handles: [DRef; 2] = [texts, session.call("tests.whoami", ()).await.unwrap()];
        let mixed = session.call_each(&echo, |worker| (&handles[worker.index() % 2],)).await.unwrap();
        drop(handles);
        let mixed = session.values(&mixed).await.unwrap();
        assert_eq!(mixed, ["worker 0".into(), Value::Int(1), "worker 2".into(), Value::Int(3)]);
    });
}

fn a_failure_of_a_selected_worker_names_it_and_the_function(kind: Kind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        let diverge = session.function("tests.diverge").await.unwrap();
        session.call_on([1, 2], &diverge, (2, 7.0, false)).await.unwrap();
        let error = session.sync_all().await.unwrap_err();
        let Error::Worker(failure) = &error else { panic!("{error:?}") };
        let named = (failure.worker, &*failure.operation, failure.kind.clone());
        assert_eq!(named, (WorkerId::new(2), "tests.diverge", ErrorKind::User));
        session.recover().await.unwrap();
        let count = session.function("tests.count").await.unwrap();
        session.call_on([1], &count, ("one",)).await.unwrap();
        let error = session.sync_all().await.unwrap_err().to_string();
        assert!(error.starts_with("worker 1: tests.count (command "), "{error}");
        session.shutdown().await.unwrap();
    });
}

fn a_selection_of_missing_or_repeated_workers_is_refused(kind: Kind) {
    with_session(builder(kind), async |session| {
        let whoami = session.function("tests.whoami").await.unwrap();
        let error = session.call_on([1, 4], &whoami, ()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSuchWorker);
        let error = session.call_on([1, 2, 1], &whoami, ()).await.unwrap_err();
        assert_eq!(error.to_string(), "call_on: worker 1 is named twice");
        session.sync_all().await.unwrap();
    });
}
