//! Messages between processes: a decoded message can be encoded, and decodes to the same message.

#![no_main]

use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::{Activity, OpPlace, Progress, TimeLimit};
use disco_core::channel::Signal;
use disco_core::error::{LossCause, ProcessEnd};
use disco_core::status::{ConnectionStatus, Known, NodeState, NodeStatus, Status};
use disco_core::wire::{Assignment, Hello, Join, Message, Packet, RingPlace, StoreCall, Times, Welcome, WireError};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Op, Tensor, Uplink, Value, WorkerId, WorkerRange, World};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), WireError> {
    let (message, _) = read(bytes)?;
    let written = message.encode().expect("a message that was read can be written");
    let (again, rest) = read(&written).expect("a message that was written can be read");
    assert!(rest.is_empty(), "{rest:?} after {again:?}");
    assert_eq!(again.encode().expect("it was written before"), written);
    Ok(())
}

fn read(bytes: &[u8]) -> Result<(Message, &[u8]), WireError> {
    let (packet, rest) = Packet::split(bytes)?;
    Ok((Message::decode(packet)?, rest))
}

fn seeds() -> Vec<Vec<u8>> {
    let key = || Arc::<str>::from("disco.key");
    let calls = [
        StoreCall::Set(key(), bytes()),
        StoreCall::Get(key()),
        StoreCall::Wait(key(), Duration::from_secs(1)),
        StoreCall::Add(key(), -1),
        StoreCall::CompareAndSet(key(), None, bytes()),
        StoreCall::CompareAndSet(key(), Some(bytes()), bytes()),
        StoreCall::Delete(key()),
    ];
    let mut messages = messages_of_workers();
    messages.extend(messages_of_nodes());
    messages.extend(calls.map(|call| Message::StoreRequest { id: 2, epoch: 3, call }));
    messages.extend(disco_fuzz::values().into_iter().map(|value| Message::Reply { seq: 4, reply: Ok(value) }));
    messages.iter().map(|message| message.encode().expect("a message of a seed can be written")).collect()
}

fn bytes() -> Arc<[u8]> {
    [1, 2, 3].into()
}

/// Messages between a controller and its workers.
fn messages_of_workers() -> Vec<Message> {
    let hello = Hello {
        token: bytes(),
        worker: WorkerId::new(1),
        thread: 1,
        functions: vec!["a".into(), "demo.function".into()],
    };
    vec![
        Message::Hello(hello),
        welcome(None),
        welcome(Some(RingPlace { reader: 1, readers: 3, capacity: 1 << 10 })),
        Message::Bye("why".into()),
        Message::Reply { seq: 4, reply: Err(Arc::new(disco_fuzz::failure())) },
        Message::Notice(bytes()),
        progress(),
        Message::Frame { seq: 5, bytes: bytes(), transfer: None },
        Message::Frame { seq: 6, bytes: bytes(), transfer: Some(7) },
        Message::Ahead { transfer: 7, left: 8, bytes: bytes() },
        Message::Withdraw(7),
        Message::Signal(Signal::Abort { epoch: 1, cause: "another worker failed".into() }),
        Message::Signal(Signal::Cancel { command: 8, cause: "no longer needed".into() }),
        Message::Signal(Signal::Taken { worker: WorkerId::new(3), command: 8, count: 9 }),
        Message::Signal(Signal::Shutdown),
        Message::Credit { frames: 6, bytes: 700 },
        Message::Descriptor { id: 7 },
        Message::Answer { id: 8, result: Ok(Value::None) },
        Message::Answer { id: 8, result: Err(Error::Aborted { cause: "why".into() }) },
        Message::Answer { id: 8, result: Err(Error::invalid("no such key")) },
        Message::Share { id: 9, name: 10 },
        Message::Unshare(10),
        Message::Receive { id: 11, name: 10 },
    ]
}

/// Messages between a controller and its nodes.
fn messages_of_nodes() -> Vec<Message> {
    let from = |message| Message::From { workers: WorkerRange::new(3..4), message: Box::new(message) };
    let mut config = WorkerConfig::new(World::new(4, 2).and_then(|world| world.on_nodes(2)).expect("two nodes of two"));
    config.uplink = Some(Uplink { own: [192, 0, 2, 7].into(), upper: [0xfd00, 0, 0, 0, 0, 0, 0, 1].into() });
    let [heartbeat, silence, start] = [1, 5, 30].map(Duration::from_secs);
    let workers = WorkerRange::new(2..4);
    vec![
        Message::Part { left: 12, bytes: bytes() },
        Message::Join(Join {
            name: "a machine".into(),
            rack: "a rack".into(),
            is_spare: true,
            functions: vec!["a".into(), "demo.function".into()],
        }),
        Message::Assign(Assignment {
            node: 1,
            workers,
            behind: [2, 1].into(),
            processes: true,
            config,
            heartbeat,
            silence,
            start,
        }),
        Message::Ready,
        Message::Alive(Times { sent: 1 << 40, echo: 7, held: 3 }),
        Message::Relay { everywhere: true },
        Message::Listens(vec!["192.0.2.1:4000".into(), "[::1]:4000".into()]),
        Message::Redirect { node: 7, addresses: vec!["192.0.2.1:4000".into()], start: Duration::from_secs(27) },
        Message::Left("worker 3".into()),
        Message::AskStatus,
        Message::Late,
        Message::Status(Box::new(status())),
        from(Message::Output { is_err: true, line: bytes() }),
        from(Message::Lost {
            cause: LossCause::ProcessEnded { end: ProcessEnd::Exited(3), connected: true },
            whole: true,
        }),
        from(Message::Lost { cause: LossCause::Unacknowledged(7), whole: false }),
        from(Message::Reply { seq: 4, reply: Ok(Value::Int(1)) }),
        from(progress()),
    ]
}

fn welcome(ring: Option<RingPlace>) -> Message {
    let config = WorkerConfig::new(World::new(4, 2).expect("two groups of two"));
    Message::Welcome(Welcome { config, ring, heartbeat: Duration::from_millis(100) })
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

fn progress() -> Message {
    let (activity, dst) = (Activity::default(), Tensor::from_slice(&[1.0f32; 4], [4]).expect("a tensor"));
    activity.receive(9);
    activity.enter(activity.intern("demo.function"), TimeLimit::Call);
    activity.start_op(&Op::Broadcast { src: None, dst, root: 0.into() }, 2, OpPlace::default()).end(true);
    Message::Progress(activity.progress())
}
