//! Back-pressure of large replies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use disco::{Builder, Error, RegisterId, Tensor, Value, WorkerId, WorkerRange, World, block_on};
use disco_channel::processes::{self, ProcessLane};
use disco_core::{
    Channel, Command, Frame, Inbox,
    channel::{Notice, Reply},
    worker::WorkerConfig,
};

super::tests!(
    large_gets_at_once_return_all_values_and_the_worker_buffers_few_of_them,
    a_lane_whose_inbox_accepts_no_large_replies_holds_them_back_and_delivers_small_ones,
);

/// Size of a large value, in bytes.
const LARGE: usize = 40 << 20;
/// Number of concurrent gets.
const GETS: usize = 16;

fn large_gets_at_once_return_all_values_and_the_worker_buffers_few_of_them() {
    let session = Builder::processes(2).start().unwrap();
    let bytes = block_on(session.function("tests.bytes")).unwrap();
    let value = block_on(session.call(&bytes, (LARGE as i64,))).unwrap();
    let get = || {
        let Value::Bytes(bytes) = block_on(session.value(&value, WorkerId::new(1))).unwrap() else { panic!() };
        assert!(bytes.len() == LARGE && bytes.ends_with(&[7; 1000]));
    };
    thread::scope(|scope| (0..GETS).for_each(|_| drop(scope.spawn(get))));
    let peak = block_on(async {
        let peak = session.call("tests.peak", ()).await.unwrap();
        session.value(&peak, WorkerId::new(1)).await.unwrap()
    });
    let Value::Int(peak) = peak else { panic!() };
    // The value, its encoding and the reply in flight have this size each; a little more may be queued.
    assert!(peak < 6 * LARGE as i64, "the worker had {peak} bytes");
    block_on(session.shutdown()).unwrap();
}

/// An inbox that accepts large replies only while it is open.
#[derive(Debug)]
struct Gate {
    is_open: AtomicBool,
    replies: Mutex<mpsc::Sender<WorkerId>>,
    lost: Mutex<Vec<String>>,
}

impl Inbox for Gate {
    fn reply(&self, from: WorkerId, _: u64, _: Reply) {
        self.replies.lock().unwrap().send(from).unwrap();
    }

    fn accepts_large_replies(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn notice(&self, _: WorkerId, _: Notice) {}

    fn room(&self, _: WorkerRange) {}

    fn left(&self, _: WorkerRange) {}

    fn lost(&self, _: WorkerRange, error: Error) {
        self.lost.lock().unwrap().push(error.to_string());
    }
}

fn a_lane_whose_inbox_accepts_no_large_replies_holds_them_back_and_delivers_small_ones() {
    // Bytes travel over the connection, tensors in shared memory.
    assert_held_back(Value::from(vec![7u8; LARGE]));
    assert_held_back(Tensor::from_vec(vec![7u8; LARGE], [LARGE]).unwrap().into());
}

fn assert_held_back(value: Value) {
    let mut options = processes::Options::new(WorkerConfig::new(World::new(3, 1).unwrap()));
    let (silence, register) = (Duration::from_secs(1), RegisterId::new(1));
    (options.silence, options.heartbeat) = (silence, silence / 5);
    let lane = ProcessLane::new(WorkerRange::new(1..3), Arc::default(), options);
    let (tell, told) = mpsc::channel();
    let gate = Arc::new(Gate { is_open: true.into(), replies: tell.into(), lost: Mutex::default() });
    lane.start(gate.clone()).unwrap();
    let reply = || told.recv_timeout(Duration::from_secs(20)).unwrap().index();
    let send = |seq, command| lane.send(&Arc::new(Frame::new(seq, [], command))).unwrap();
    let [holder, other] = [1, 2].map(WorkerId::new);
    send(1, Command::DebugSet { register, worker: holder, value });
    assert_eq!(reply(), 1);
    gate.is_open.store(false, Ordering::SeqCst);
    send(2, Command::DebugGet { register, worker: holder });
    send(3, Command::SyncWorker { worker: other });
    assert_eq!(reply(), 2);
    // They wait behind the large one.
    (4..6).for_each(|seq| send(seq, Command::DebugGet { register, worker: holder }));
    // Longer than workers may be silent.
    assert!(told.recv_timeout(2 * silence).is_err(), "a large reply came");
    gate.is_open.store(true, Ordering::SeqCst);
    (0..3).for_each(|_| assert_eq!(reply(), 1));
    assert!(gate.lost.lock().unwrap().is_empty());
    send(6, Command::Shutdown);
    lane.close(Duration::from_secs(20)).unwrap();
}
