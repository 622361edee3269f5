//! Timeouts and refusals while nodes join.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use super::*;

/// What becomes of a lane to two nodes if the process of the second one fails after `before`.
fn after_a_failed_process(before: impl FnOnce(&mut Bench)) -> Vec<String> {
    let mut bench = Bench::nodes(2);
    (0..2).for_each(|node| bench.on(Event::Started(node, Some(100 + node as u32))));
    before(&mut bench);
    bench.done();
    bench.on(Event::Ended(1, Some(ExitStatus::from_raw(256))));
    bench.done()
}

#[test]
fn a_process_of_a_node_that_ends_while_nodes_join_fails_the_start_at_once() {
    let lost = "failed: node 2 with workers 2 to 3 lost: its process ended: exit status: 1";
    let ended = after_a_failed_process(|bench| bench.join(0, Some(1)));
    assert_eq!(ended[0], format!("{lost} before it connected; its standard error may have the reason"));
    let refused = after_a_failed_process(|bench| bench.prove(0, "another secret of many words", Request::default()));
    assert_eq!(refused[0], format!("{lost}; refused: 127.0.0.1:1000: its token does not match"));
    let both_joined = after_a_failed_process(|bench| (0..2).for_each(|slot| bench.join(slot, Some(slot + 1))));
    assert!(both_joined.is_empty(), "a node that has joined is lost with its connection: {both_joined:?}");
}

#[test]
fn a_node_that_froze_while_it_waited_joins_again() {
    let mut bench = Bench::nodes(2);
    bench.join(0, Some(1));
    bench.pass(1900 * MS);
    bench.join(1, Some(1));
    assert_eq!(bench.sent_to(1), ["Bye"], "node 1 has joined already");
    bench.done();
    bench.pass(100 * MS);
    bench.join(2, Some(1));
    assert!(bench.is_closed(0), "node 1 said nothing for two heartbeats, and its successor gets its place");
    bench.join(3, Some(2));
    assert_eq!([2, 3].map(|slot| bench.sent_to(slot).pop().unwrap()), ["Assign", "Assign"]);
    assert!(bench.sent_to(0).iter().all(|sent| sent == "Alive"));
}

#[test]
fn a_node_that_does_not_match_the_session_is_refused_and_the_start_goes_on() {
    let mut bench = Bench::nodes(1);
    bench.prove(0, TOKEN, Request { node: Some(1), per_node: Some(7) });
    bench.send_from(
        0,
        Message::Join(Join { name: "small".into(), rack: String::new(), is_spare: false, functions: functions() }),
    );
    bench.prove(1, TOKEN, Request { node: Some(1), per_node: None });
    bench.send_from(
        1,
        Message::Join(Join {
            name: "old".into(),
            rack: String::new(),
            is_spare: false,
            functions: vec!["theirs.only".into()],
        }),
    );
    assert_eq!([bench.sent_to(0), bench.sent_to(1)], [["Bye"], ["Bye"]]);
    bench.done();
    bench.pass(31_000 * MS);
    let failed = bench.done().remove(0);
    let small = "small at 127.0.0.1:1000: it was started with 7 workers, and nodes of this session have 2; old at 127.0.0.1:1001: ";
    assert!(
        failed.starts_with(&format!("failed: start: no end after 30s: node 1 did not join; refused: {small}")),
        "{failed}"
    );
    assert!(failed.ends_with("; only it has: theirs.only"), "{failed}");

    let mut bench = Bench::nodes(1);
    bench.prove(0, TOKEN, Request { node: None, per_node: Some(7) });
    bench.send_from(
        0,
        Message::Join(Join { name: "small".into(), rack: String::new(), is_spare: false, functions: functions() }),
    );
    bench.join(1, None);
    assert_eq!([bench.sent_to(0), bench.sent_to(1)], [["Bye"], ["Assign"]]);
}

#[test]
fn idle_nodes_send_fewer_heartbeats_while_they_wait_for_others() {
    let mut bench = Bench::nodes_with(2, 1500 * MS, true);
    bench.join(0, Some(1));
    bench.pass(4900 * MS);
    assert!(!bench.is_closed(0));
    bench.join(1, None);
    assert_eq!([0, 1].map(|slot| bench.sent_to(slot).pop().unwrap()), ["Assign", "Assign"]);
    // The silence timeout counts from the assignment while workers start.
    bench.pass(1400 * MS);
    (0..2).for_each(|slot| bench.send_from(slot, Message::Ready));
    assert_eq!(bench.done(), ["Started(Ok(()))"]);
}

#[test]
fn connections_with_an_incomplete_handshake_are_refused_at_the_deadline() {
    let mut bench = Bench::nodes(1);
    bench.connect(0);
    bench.connect(1);
    bench.prove(2, TOKEN, Request::default());
    let magic = b"discnode\0\0\0\0\0\0\0\0\0\0";
    for byte in &magic[..5] {
        bench.pass(980 * MS);
        // Single bytes do not extend the deadline.
        bench.on(Event::Bytes(conn(1), vec![*byte]));
    }
    assert!((0..3).all(|slot| !bench.is_closed(slot)), "they have 5 s");
    bench.pass(100 * MS);
    assert!((0..3).all(|slot| bench.is_closed(slot)));
    bench.join(3, None);
    assert_eq!(bench.sent_to(3), ["Assign"]);
}

#[test]
fn the_start_waits_again_for_a_node_that_left_when_the_last_one_joined() {
    let mut bench = Bench::nodes(2);
    bench.join(0, Some(1));
    bench.ask_to_join(1, Some(2));
    bench.ask_to_join(2, None);
    assert_eq!(bench.sent_to(2), ["Bye"], "all nodes have joined");
    // Handled after the last JOIN, in the same pass.
    bench.on(Event::Hung(conn(0), None));
    bench.pass(Duration::ZERO);
    assert!(bench.sent_to(1).is_empty(), "node 1 is missing");
    bench.join(3, Some(1));
    assert_eq!([1, 3].map(|slot| bench.sent_to(slot).pop().unwrap()), ["Assign", "Assign"]);
}

#[test]
fn a_lane_that_is_closed_while_it_starts_gives_up_and_tells_the_nodes() {
    let mut bench = Bench::nodes(2);
    bench.join(0, Some(1));
    bench.on(Event::Close(Duration::from_secs(60)));
    let done = bench.done();
    let ends = [&done[0], done.last().unwrap()];
    assert_eq!(ends, ["failed: the lane was closed while it started", "Over"]);
    assert_eq!((bench.sent_to(0), bench.engine.stuck()), (vec!["Bye".to_owned()], Some(&[][..])));
}
