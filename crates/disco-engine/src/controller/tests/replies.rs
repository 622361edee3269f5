//! Tests of replies that a node sends together.

use disco_core::wire::Message;
use disco_core::{Value, WorkerRange};

use super::Bench;

fn replies(workers: WorkerRange) -> Message {
    Message::From { workers, message: Box::new(Message::Reply { seq: 7, reply: Ok(Value::None) }) }
}

#[test]
fn a_node_replies_for_several_of_its_workers_at_once_and_for_no_others() {
    let mut bench = Bench::running(2);
    bench.send_from(1, replies(WorkerRange::new(2..4)));
    assert_eq!(bench.done(), ["Replies { workers: WorkerRange { first: 2, len: 2 }, seq: 7 }"]);
    bench.send_from(1, replies(WorkerRange::new(1..3)));
    let done = bench.done().join("; ");
    assert!(done.contains("it sent garbage: a message of workers 1 to 2"), "{done}");
    bench.send_from(0, replies(WorkerRange::new(1..1)));
    assert!(bench.done().join("; ").contains("a message of no workers"));
}

#[test]
fn a_process_can_not_reply_for_others() {
    let mut bench = Bench::working();
    bench.send_from(0, replies(WorkerRange::new(0..1)));
    let done = bench.done().join("; ");
    assert!(done.contains("worker 0 lost: it sent garbage: From"), "{done}");
}
