//! Large tensors that go to a node ahead of their command, over a slow link.

use std::thread;
use std::time::{Duration, Instant};

use disco::{DRef, LaneSession, Session, SessionExt, SessionKind, Tensor, WorkerId, block_on};

use crate::link::{Proxy, behind};
use crate::programs::{PATIENCE, builder, end};

crate::tests!(small_commands_overtake_a_large_set_to_the_same_node);

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
