//! Messages between processes, for the tests of the encoding and the fuzz target `message`.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::{Activity, OpPlace, Progress, TimeLimit};
use disco_core::channel::Signal;
use disco_core::error::{ErrorKind, Failure, LossCause, ProcessEnd, UserError};
use disco_core::link::{KeeperCall, KeptName};
use disco_core::status::{ConnectionStatus, Known, NodeState, NodeStatus, Status};
use disco_core::wire::{Assignment, Hello, Join, Message, RingPlace, StoreCall, Times, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Op, RegisterId, Tensor, Uplink, Value, WorkerId, WorkerRange, World};

pub(crate) fn failure_of_worker_1() -> Failure {
    Failure {
        worker: WorkerId::new(1),
        command: 7,
        operation: "f".into(),
        register: Some(RegisterId::new(3)),
        message: "no luck".into(),
        causes: vec!["a cause".into()],
        aborted: true,
        kind: ErrorKind::Library { backend: "nccl".into(), function: "ncclSend".into(), code: 3 },
        user: UserError::new("tests::Diverged", *b"three"),
    }
}

/// At least one message of each kind.
pub(crate) fn messages() -> Vec<Message> {
    let failure = Arc::new(failure_of_worker_1());
    let hello = Hello {
        token: [1, 2, 3].into(),
        worker: WorkerId::new(2),
        thread: 77,
        functions: vec!["disco.empty".into(), "tests.f".into()],
    };
    let mut config = WorkerConfig::new(World::new(6, 2).unwrap());
    config.check = true;
    let ring = Some(RingPlace { reader: 1, readers: 5, capacity: 1 << 19 });
    let all = [
        Message::Hello(hello),
        Message::Welcome(Welcome { config, ring: None, heartbeat: Duration::from_millis(100) }),
        Message::Welcome(Welcome { config, ring, heartbeat: Duration::from_millis(200) }),
        Message::Bye("enough".into()),
        Message::Reply { seq: 1 << 40, reply: Ok(Value::from("text")) },
        Message::Reply { seq: 2, reply: Err(failure) },
        Message::Notice([1, 2].into()),
        Message::Progress(progress()),
        Message::Frame { seq: 3, bytes: [9; 100].into(), transfer: None },
        Message::Frame { seq: 4, bytes: [9; 100].into(), transfer: Some(7) },
        Message::Ahead { transfer: 7, left: 1 << 40, bytes: [9; 100].into() },
        Message::Withdraw(7),
        Message::Signal(Signal::Abort { epoch: u64::MAX, cause: "worker 1 failed".into() }),
        Message::Signal(Signal::Cancel { command: 1 << 40, cause: "no longer needed".into() }),
        Message::Signal(Signal::Settle { command: 1 << 40, breaks: None }),
        Message::Signal(Signal::Settle { command: 2, breaks: Some("no longer needed".into()) }),
        Message::Signal(Signal::Taken { worker: WorkerId::new(3), command: 1 << 40, count: 1 << 41 }),
        Message::Signal(Signal::Replace {
            workers: WorkerRange::new(3..5),
            addresses: vec!["10.0.0.1:4567".into(), "[::1]:4567".into()],
        }),
        Message::Signal(Signal::Shutdown),
        Message::Credit { frames: 512, bytes: 1 << 40 },
        Message::Descriptor { id: 6 },
        Message::Share { id: 7, name: 1 << 32 },
        Message::Unshare(1 << 32 | 1),
        Message::Receive { id: 7, name: 1 << 32 },
        Message::KeeperRequest { id: 8, call: KeeperCall::Find(KeptName::own("keys")) },
        Message::KeeperRequest { id: 9, call: KeeperCall::Keep(KeptName::shared("weights")) },
        Message::KeeperRequest { id: 9, call: KeeperCall::Discard(KeptName::own("")) },
        Message::Part { left: 1 << 40, bytes: [9; 100].into() },
        Message::Beside,
        Message::Ready,
        Message::Alive(Times::default()),
        Message::Alive(Times { sent: 1 << 62, echo: 7, held: 3 }),
    ];
    all.into_iter().chain(store_messages()).chain(node_messages()).collect()
}

/// Calls of the store, and answers.
fn store_messages() -> impl Iterator<Item = Message> {
    let key = || "key".into();
    let asks = [
        StoreCall::Set(key(), [1].into()),
        StoreCall::Get(key()),
        StoreCall::Wait(key(), Duration::from_secs(5)),
        StoreCall::Add(key(), -5),
        StoreCall::CompareAndSet(key(), None, [].into()),
        StoreCall::CompareAndSet(key(), Some([1].into()), [2].into()),
        StoreCall::Delete(key()),
    ];
    let answers = [
        Message::Answer { id: 3, result: Ok(Value::None) },
        Message::Answer { id: 4, result: Ok(Value::Bool(true)) },
        Message::Answer { id: 5, result: Err(Error::Aborted { cause: "worker 1 failed".into() }) },
        Message::Answer {
            id: 5,
            result: Err(Error::Deadline {
                operation: "wait".into(),
                after: Duration::from_secs(5),
                state: "nobody came".into(),
            }),
        },
        Message::Answer { id: 5, result: Err(Error::state("not now")) },
        Message::Answer { id: 5, result: Err(Error::system("share", std::io::Error::from_raw_os_error(24))) },
    ];
    asks.into_iter().map(|call| Message::StoreRequest { id: 8, epoch: 1, call }).chain(answers)
}

/// Messages between a controller and a node.
fn node_messages() -> Vec<Message> {
    let config = WorkerConfig::new(World::new(6, 2).unwrap());
    let [heartbeat, silence, start] = [1, 5, 30].map(Duration::from_secs);
    let workers = WorkerRange::new(3..6);
    let mut on_nodes = WorkerConfig::new(config.world.on_nodes(2).unwrap());
    let upper = [0xfd00, 0, 0, 0, 0, 0, 0, 1].into();
    on_nodes.uplink = Some(Uplink { own: [192, 0, 2, 7].into(), upper, is_encrypted: true });
    let assignment = Assignment {
        node: 1,
        workers,
        behind: [2, 1].into(),
        processes: true,
        config: on_nodes,
        heartbeat,
        silence,
        start,
    };
    let from = |message| Message::From { workers: WorkerRange::new(4..5), message: Box::new(message) };
    vec![
        Message::Join(Join {
            name: "a machine".into(),
            rack: "a rack".into(),
            is_spare: true,
            functions: vec!["disco.empty".into(), "tests.f".into()],
        }),
        Message::Assign(assignment),
        Message::Relay { everywhere: true },
        Message::Listens(vec!["192.0.2.1:4000".into(), "[::1]:4000".into()]),
        Message::Redirect { node: 7, addresses: vec!["192.0.2.1:4000".into()], start: Duration::from_secs(27) },
        Message::Left("worker 3 (idle)".into()),
        Message::AskStatus,
        Message::Late,
        Message::Status(Box::new(status())),
        from(Message::Reply { seq: 2, reply: Ok(Value::from("text")) }),
        from(Message::Output { is_err: true, line: b"a line".as_slice().into() }),
        from(Message::Lost {
            cause: LossCause::ProcessEnded { end: ProcessEnd::Exited(3), connected: true },
            whole: true,
        }),
        from(Message::Lost { cause: LossCause::Unacknowledged(7), whole: false }),
        from(Message::Progress(progress())),
        from(Message::Signal(Signal::Shutdown)),
    ]
}

fn status() -> Status {
    let mut status = Status::default();
    status.uptime = Duration::from_millis(1500);
    status.failure = Some("why".into());
    let (workers, state) = (WorkerRange::new(1..2), NodeState::Ended("why".into()));
    let mut node = NodeStatus::new(1, "node 1 (host)".into(), workers, state);
    let mut connection = ConnectionStatus::default();
    connection.address = "[::1]:4567".parse().ok();
    node.connection = Some(connection);
    status.nodes.push(node);
    let mut known = Known::new(Progress::new(2, 1));
    (known.unchanged, known.place) = (Some(Duration::from_secs(1)), Some((10, 11)));
    status.add_workers("nodes", workers, |_| known.clone());
    status
}

fn progress() -> Progress {
    let activity = Activity::default();
    activity.receive(9);
    activity.enter(activity.intern("tests.f"), TimeLimit::Call);
    let tensor = Tensor::from_slice(&[1f32, 2.0], [2]).unwrap();
    let op = Op::Broadcast { src: None, dst: tensor, root: 0.into() };
    let running = activity.start_op(&op, 2, OpPlace::default());
    let progress = activity.progress();
    running.end(true);
    progress
}
