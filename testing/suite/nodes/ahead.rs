//! Large tensors that are sent to a node ahead of their command, over a slow link.

use std::pin::pin;
use std::thread;
use std::time::Duration;

use disco::{DRef, DType, Deadlines, Error, LaneSession, SessionKind, Tensor, WorkerId, block_on};
use disco_conformance::waiting::{poll, wait_until};
use futures_lite::future;

use super::link::{Proxy, behind};
use super::programs::{TEST_TIMEOUT, builder, complaint, end, node, with};

super::tests!(
    small_commands_overtake_a_large_set_to_the_same_node,
    a_large_set_that_is_not_polled_does_not_stop_the_next_one,
    a_stalled_transfer_fails_with_the_number_of_bytes_sent,
    a_large_argument_waits_for_a_full_lane,
    a_transfer_ends_with_the_lanes_of_before_a_resize,
);

/// Rate of the link, in bytes per second.
const RATE: usize = 8 << 20;
/// Rate at which a large tensor takes much longer than all small commands of a test, also on a busy machine.
const SLOW_RATE: usize = RATE / 4;
/// Size in bytes of a tensor whose transfer takes 2 s.
const LARGE: usize = 2 * RATE;

fn large(first: u64) -> Tensor {
    Tensor::from_vec((first..first + (LARGE / 8) as u64).collect::<Vec<_>>(), [LARGE / 8]).unwrap()
}

fn is_same(one: &Tensor, other: &Tensor) -> bool {
    *one.bytes().unwrap() == *other.bytes().unwrap()
}

/// Waits until `bytes` bytes have been sent to the node since its start.
fn wait_for_bytes(proxy: &Proxy, bytes: usize) {
    wait_until(&format!("{bytes} bytes to the node"), || proxy.passed() >= bytes);
}

/// Runs syncs, gets and calls on workers 2 and 3, which are on the node.
async fn small_commands(session: &LaneSession, register: &DRef) {
    let length = session.function("tests.length").await.unwrap();
    // Each round trip takes half a second, because the link has buffers.
    for worker in [3, 2].map(WorkerId::new) {
        session.sync_worker(worker).await.unwrap();
        let got: i64 = session.get(register, worker).await.unwrap();
        assert_eq!(got, 4);
        let called = session.call(&length, ("five!",)).await.unwrap();
        let got: i64 = session.get(&called, worker).await.unwrap();
        assert_eq!(got, 5);
    }
}

fn small_commands_overtake_a_large_set_to_the_same_node() {
    for kind in [SessionKind::Threads, SessionKind::Processes] {
        let (session, proxy, node) = behind(builder(2, 2).node_options(|nodes| nodes.workers = kind), |address| {
            Proxy::throttled(address, SLOW_RATE)
        });
        let (worker, tensor) = (WorkerId::new(2), large(7));
        let [small, register] = [(); 2].map(|()| block_on(session.call("tests.length", ("four",))).unwrap());
        block_on(session.sync_all()).unwrap();
        thread::scope(|scope| {
            let set = scope.spawn(|| block_on(session.set(&register, worker, tensor.clone().into())));
            wait_for_bytes(&proxy, 1 << 20);
            block_on(small_commands(&session, &small));
            assert!(!set.is_finished());
            proxy.set_rate(0);
            set.join().unwrap().unwrap();
        });
        let back: Tensor = block_on(session.get(&register, worker)).unwrap();
        assert!(is_same(&back, &tensor));
        block_on(session.shutdown()).unwrap();
        assert!(end(node).status.success());
    }
}

fn a_large_set_that_is_not_polled_does_not_stop_the_next_one() {
    // Both together are above the limit.
    let builder =
        builder(2, 2).node_options(|nodes| nodes.workers = SessionKind::Threads).value_limit(LARGE + LARGE / 2);
    let (session, proxy, node) = behind(builder, |address| Proxy::throttled(address, 4 * RATE));
    let register = block_on(session.call("tests.length", ("four",))).unwrap();
    block_on(session.sync_all()).unwrap();
    let mut first = session.set(&register, WorkerId::new(2), large(1).into());
    block_on(async {
        assert!(future::poll_once(&mut first).await.is_none());
    });
    // Most of it goes without another poll.
    wait_for_bytes(&proxy, LARGE / 2);
    let second = session.set(&register, WorkerId::new(3), large(2).into());
    block_on(second).unwrap();
    block_on(first).unwrap();
    for (worker, begin) in [(2, 1), (3, 2)] {
        let back: Tensor = block_on(session.get(&register, WorkerId::new(worker))).unwrap();
        assert!(is_same(&back, &large(begin)), "worker {worker}");
    }
    block_on(session.shutdown()).unwrap();
    assert!(end(node).status.success());
}

fn a_stalled_transfer_fails_with_the_number_of_bytes_sent() {
    let limits = Deadlines::default().with_stall(Duration::from_secs(1));
    let builder = builder(2, 1).deadlines(limits).silence(TEST_TIMEOUT);
    let (session, proxy, node) = behind(builder, |address| Proxy::throttled(address, RATE));
    let worker = WorkerId::new(1);
    let register = block_on(session.call("tests.length", ("four",))).unwrap();
    block_on(session.sync_all()).unwrap();
    proxy.stop_forwarding();
    // Larger than the socket buffers.
    let tensor = Tensor::zeros(DType::U8, [64 << 20]).unwrap();
    let error = block_on(session.set(&register, worker, tensor.into())).unwrap_err().to_string();
    assert!(error.starts_with("set: no end after 1s: worker 1 took "), "{error}");
    assert!(error.ends_with(" bytes of tensors of 67108864 bytes, and then nothing more"), "{error}");
    proxy.cut();
    // Fails if the loss is already known.
    _ = block_on(session.shutdown());
    complaint(node);
}

fn a_large_argument_waits_for_a_full_lane() {
    let (session, proxy, node) = behind(builder(2, 1), Proxy::start);
    let [length, sum] = ["tests.length", "nodes.sum"].map(|name| block_on(session.function(name)).unwrap());
    // Worker 1 takes no other command until the file is removed.
    let file = tempfile::NamedTempFile::new().unwrap();
    block_on(session.call("tests.stay", (1, file.path().display().to_string()))).unwrap();
    let submit = || block_on(future::poll_once(pin!(session.call(&length, ("four",)))));
    // The node takes some commands after the lane was full for the first time.
    while let Some(called) = poll(Duration::from_millis(300), submit) {
        called.unwrap();
    }
    let (one, other) = (large(0), Tensor::from_slice(&[7u64], [1]).unwrap());
    let begun = proxy.passed();
    let sums = thread::scope(|scope| {
        let call = scope.spawn(|| block_on(session.call(&sum, (&one, &other))).unwrap());
        wait_for_bytes(&proxy, begun + LARGE);
        assert!(!call.is_finished(), "the lane is full");
        drop(file);
        call.join().unwrap()
    });
    let expected = one.to_vec::<u64>().unwrap().iter().sum::<u64>() + 7;
    assert_eq!(block_on(session.get::<u64>(&sums, WorkerId::new(1))).unwrap(), expected);
    block_on(session.shutdown()).unwrap();
    assert!(end(node).status.success());
}

fn a_transfer_ends_with_the_lanes_of_before_a_resize() {
    let (session, (proxy, nodes)) = with(builder(3, 1), |address| {
        let proxy = Proxy::throttled(address, SLOW_RATE);
        let join = |number: &str, to| node(to).env("DISCO_NODE_ID", number).spawn().unwrap();
        let nodes = [join("1", address), join("2", proxy.address())];
        (proxy, nodes)
    });
    let session = session.unwrap();
    let sum = block_on(session.function("nodes.sum")).unwrap();
    let (one, other) = (large(0), Tensor::from_slice(&[7u64], [1]).unwrap());
    let expected = one.to_vec::<u64>().unwrap().iter().sum::<u64>() + 7;
    thread::scope(|scope| {
        let call = scope.spawn(|| block_on(session.call(&sum, (&one, &other))));
        wait_for_bytes(&proxy, 1 << 20);
        block_on(session.resize(2)).unwrap();
        let sums = match call.join().unwrap() {
            // The transfer has ended while the epoch began.
            Err(Error::State(why)) if why == "the session is being resized" => {
                block_on(session.call(&sum, (&one, &other))).unwrap()
            }
            called => called.unwrap(),
        };
        assert_eq!(block_on(session.get_all::<u64>(&sums)).unwrap(), [expected; 2]);
    });
    block_on(session.shutdown()).unwrap();
    nodes.into_iter().for_each(|node| _ = end(node));
}
