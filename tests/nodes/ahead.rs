//! Large tensors that go to a node ahead of their command, over a slow link.

use std::thread;
use std::time::{Duration, Instant};

use disco::{DRef, DType, Deadlines, LaneSession, Session, SessionExt, SessionKind, Tensor, WorkerId, block_on};
use futures_lite::future;

use crate::link::{Proxy, behind};
use crate::programs::{PATIENCE, builder, complaint, end};

crate::tests!(
    small_commands_overtake_a_large_set_to_the_same_node,
    small_commands_overtake_a_large_argument,
    a_dropped_set_is_taken_back_and_the_next_one_goes,
    concurrent_large_sets_arrive_intact,
    a_link_that_is_cut_in_a_transfer_is_named,
    a_transfer_that_stands_still_ends_with_the_bytes_that_went,
);

/// Bytes that go to the node in a second, and bytes of a tensor that takes 3 s.
const RATE: usize = 8 << 20;
const LARGE: usize = 3 * RATE;

fn large(first: u64) -> Tensor {
    Tensor::from_vec((first..first + (LARGE / 8) as u64).collect::<Vec<_>>(), [LARGE / 8]).unwrap()
}

fn is_same(one: &Tensor, other: &Tensor) -> bool {
    *one.bytes().unwrap() == *other.bytes().unwrap()
}

/// Waits until so many bytes more have gone to the node.
fn wait_for(proxy: &Proxy, bytes: usize) {
    let (begun, start) = (proxy.passed(), Instant::now());
    while proxy.passed() < begun + bytes {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Syncs, gets and calls of workers 2 and 3, which are on the node.
async fn small_commands(session: &LaneSession, register: &DRef) {
    let length = session.function("tests.length").await.unwrap();
    for _ in 0..3 {
        for worker in [3, 2].map(WorkerId::new) {
            session.sync_worker(worker).await.unwrap();
            let got: i64 = session.get_as(register, worker).await.unwrap();
            assert_eq!(got, 4);
            let called = session.call(&length, ("five!",)).await.unwrap();
            let got: i64 = session.get_as(&called, worker).await.unwrap();
            assert_eq!(got, 5);
        }
    }
}

fn small_commands_overtake_a_large_set_to_the_same_node() {
    for kind in [SessionKind::Threads, SessionKind::Processes] {
        let (session, proxy, node) =
            behind(builder(2, 2).node_workers(kind), |address| Proxy::throttled(address, RATE));
        let (worker, tensor) = (WorkerId::new(2), large(7));
        let [small, register] = [(); 2].map(|()| block_on(session.call_named("tests.length", ("four",))).unwrap());
        block_on(session.sync_all()).unwrap();
        thread::scope(|scope| {
            let set = scope.spawn(|| block_on(session.set(&register, worker, tensor.clone().into())));
            wait_for(&proxy, 1 << 20);
            block_on(small_commands(&session, &small));
            assert!(!set.is_finished());
            set.join().unwrap().unwrap();
        });
        let back: Tensor = block_on(session.get_as(&register, worker)).unwrap();
        assert!(is_same(&back, &tensor));
        block_on(session.shutdown()).unwrap();
        assert!(end(node).status.success());
    }
}

fn small_commands_overtake_a_large_argument() {
    let (session, proxy, node) = behind(builder(2, 2), |address| Proxy::throttled(address, RATE));
    let tensor = large(3);
    let small = block_on(session.call_named("tests.length", ("four",))).unwrap();
    let sum = block_on(session.function("tests.sum")).unwrap();
    block_on(session.sync_all()).unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| block_on(session.call(&sum, (&tensor, &tensor.slice(0..1000).unwrap()))));
        wait_for(&proxy, 1 << 20);
        block_on(small_commands(&session, &small));
        assert!(!call.is_finished());
        let sums = block_on(session.get_all_as::<u64>(&call.join().unwrap().unwrap())).unwrap();
        let expected: u64 = [LARGE / 8, 1000].into_iter().flat_map(|len| 3..3 + len as u64).sum();
        assert_eq!(sums, [expected; 4]);
    });
    block_on(session.shutdown()).unwrap();
    assert!(end(node).status.success());
}

fn a_dropped_set_is_taken_back_and_the_next_one_goes() {
    // Two of the tensors together are above the limit.
    let builder = builder(2, 2).node_workers(SessionKind::Threads).value_limit(LARGE + LARGE / 2);
    let (session, proxy, node) = behind(builder, |address| Proxy::throttled(address, RATE));
    let worker = WorkerId::new(2);
    let register = block_on(session.call_named("tests.length", ("four",))).unwrap();
    block_on(session.sync_all()).unwrap();
    for first in 0..3 {
        let set = session.set(&register, worker, large(first).into());
        let wait = async {
            wait_for(&proxy, 1 << 20);
            Ok(())
        };
        // The set is polled first, and dropped when some bytes have gone.
        block_on(future::or(set, wait)).unwrap();
    }
    let got: i64 = block_on(session.get_as(&register, worker)).unwrap();
    assert_eq!(got, 4, "no command has gone");
    let tensor = large(9);
    block_on(session.set(&register, worker, tensor.clone().into())).unwrap();
    let back: Tensor = block_on(session.get_as(&register, worker)).unwrap();
    assert!(is_same(&back, &tensor));
    assert!(proxy.passed() < 2 * LARGE, "{} bytes have gone", proxy.passed());
    block_on(session.shutdown()).unwrap();
    assert!(end(node).status.success());
}

fn concurrent_large_sets_arrive_intact() {
    // One waits for the other: both together are above the limit.
    for limit in [LARGE, 4 * LARGE] {
        let builder = builder(2, 2).node_workers(SessionKind::Processes).value_limit(limit);
        let (session, _proxy, node) = behind(builder, |address| Proxy::throttled(address, 4 * RATE));
        let register = block_on(session.call_named("tests.length", ("four",))).unwrap();
        thread::scope(|scope| {
            for worker in [2, 3] {
                let set = session.set(&register, WorkerId::new(worker), large(worker.into()).into());
                scope.spawn(|| block_on(set).unwrap());
            }
        });
        for worker in [2, 3] {
            let back: Tensor = block_on(session.get_as(&register, WorkerId::new(worker))).unwrap();
            assert!(is_same(&back, &large(worker.into())), "worker {worker}");
        }
        block_on(session.shutdown()).unwrap();
        assert!(end(node).status.success());
    }
}

fn a_link_that_is_cut_in_a_transfer_is_named() {
    let (session, proxy, node) = behind(builder(2, 1), |address| Proxy::throttled(address, RATE));
    let (worker, tensor) = (WorkerId::new(1), large(0));
    let register = block_on(session.call_named("tests.length", ("four",))).unwrap();
    block_on(session.sync_all()).unwrap();
    thread::scope(|scope| {
        let set = scope.spawn(|| block_on(session.set(&register, worker, tensor.clone().into())));
        wait_for(&proxy, 1 << 20);
        proxy.cut();
        let error = set.join().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("node 1 (") && error.ends_with("its connection was closed"), "{error}");
    });
    // The session reads the tensor no more.
    tensor.bytes_mut().unwrap().fill(1);
    block_on(session.shutdown()).unwrap();
    complaint(node);
}

fn a_transfer_that_stands_still_ends_with_the_bytes_that_went() {
    let limits = Deadlines::default().with_stall(Duration::from_secs(1));
    let builder = builder(2, 1).deadlines(limits).silence(PATIENCE);
    let (session, proxy, node) = behind(builder, |address| Proxy::throttled(address, RATE));
    let worker = WorkerId::new(1);
    let register = block_on(session.call_named("tests.length", ("four",))).unwrap();
    block_on(session.sync_all()).unwrap();
    proxy.go_deaf();
    // More than the system takes for itself.
    let tensor = Tensor::zeros(DType::U8, [64 << 20]).unwrap();
    let error = block_on(session.set(&register, worker, tensor.into())).unwrap_err().to_string();
    assert!(error.starts_with("set: no end after 1s: worker 1 took "), "{error}");
    assert!(error.ends_with(" bytes of tensors of 67108864 bytes, and then nothing more"), "{error}");
    proxy.cut();
    // The session knows of the loss by now, or not.
    _ = block_on(session.shutdown());
    complaint(node);
}
