//! Tests of replies that a node sends together.

use disco_core::wire::Message;

use super::Bench;

#[test]
fn replies_of_a_node_are_those_of_all_its_workers_and_a_process_can_not_send_them() {
    let mut bench = Bench::running(2);
    bench.send_from(1, Message::Replies { seq: 7 });
    let done = bench.done();
    assert!(done.len() == 2 && done[0].contains("WorkerId(2)") && done[1].contains("WorkerId(3)"), "{done:?}");
    assert!(done.iter().all(|reply| reply.contains("seq: 7")), "{done:?}");
    let mut bench = Bench::working();
    bench.send_from(0, Message::Replies { seq: 7 });
    let done = bench.done().join("; ");
    assert!(done.contains("worker 0 lost: it sent garbage: Replies { seq: 7 }"), "{done}");
}
