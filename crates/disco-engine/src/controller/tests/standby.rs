//! Nodes that stand by, and nodes that come late while a lane waits for them.

use super::*;
use crate::controller::Vacancy;

/// A lane that has started, at whose address nodes stand by.
fn entrance(nodes: usize) -> Bench {
    Bench::nodes_of(nodes, SILENCE, (true, true)).started(nodes)
}

fn introduce(bench: &mut Bench, slot: u32, request: Request, is_spare: bool) {
    bench.prove(slot, TOKEN, request);
    let join = Join { name: "other".into(), rack: String::new(), is_spare, functions: functions() };
    bench.send_from(slot, Message::Join(join));
}

fn stand_by(bench: &mut Bench, slot: u32) {
    introduce(bench, slot, Request::default(), true);
}

/// Another lane waits for these nodes. Returns the number of nodes that it waits for, and how many were sent at once.
fn vacate(bench: &mut Bench, nodes: std::ops::Range<u32>) -> (Missing, usize) {
    let missing = Missing::default();
    missing.set(nodes.len());
    let vacancy = Vacancy::new(nodes, vec!["192.0.2.1:4000".into()], missing.clone());
    let sent = bench.engine.vacate(vacancy, bench.now);
    bench.drain();
    (missing, sent)
}

/// Lets time pass during which nodes and these spares send heartbeats.
fn live(bench: &mut Bench, slots: &[u32], time: Duration) {
    for _ in 0..time.as_millis() / 500 {
        bench.pass(500 * MS);
        slots.iter().for_each(|slot| bench.send_from(*slot, Message::Alive(Times::default())));
    }
}

fn standing(bench: &Bench) -> usize {
    bench.engine.count_spares()
}

#[test]
fn a_spare_gets_heartbeats_and_is_sent_to_a_lane_that_waits_for_nodes() {
    let mut bench = entrance(1);
    stand_by(&mut bench, 7);
    assert!(!bench.is_closed(7));
    live(&mut bench, &[0, 7], 20_000 * MS);
    let messages = bench.sent_to(7);
    assert!(messages.len() > 10 && messages.iter().all(|message| message == "Alive"), "{messages:?}");
    let (missing, sent) = vacate(&mut bench, 1..2);
    assert_eq!((sent, bench.sent_to(7), standing(&bench)), (1, vec!["Redirect".to_owned()], 0));
    assert!(bench.is_closed(7));
    missing.set(0);
    stand_by(&mut bench, 8);
    assert!(!bench.is_closed(8), "the lane has its node");
}

#[test]
fn a_silent_spare_is_forgotten() {
    let mut bench = entrance(1);
    stand_by(&mut bench, 7);
    live(&mut bench, &[0], 6000 * MS);
    assert!(bench.is_closed(7) && standing(&bench) == 0);
    assert!(bench.done().is_empty(), "the session knows nothing of it");
}

#[test]
fn a_spare_may_come_before_the_start_and_takes_no_place_then() {
    let mut bench = Bench::nodes_of(2, SILENCE, (true, true));
    stand_by(&mut bench, 7);
    let mut bench = bench.started(2);
    assert!(standing(&bench) == 1 && !bench.is_closed(7));
    assert_eq!(vacate(&mut bench, 2..3).1, 1);
}

#[test]
fn a_late_node_is_sent_to_a_lane_only_while_that_waits_for_a_node_with_its_number() {
    let mut bench = entrance(3);
    let late = |bench: &mut Bench, slot: u32, node: Option<u32>| {
        introduce(bench, slot, Request { node, per_node: None }, false);
        bench.sent_to(slot)
    };
    assert_eq!(late(&mut bench, 7, None), ["Late"]);
    let (missing, _) = vacate(&mut bench, 2..3);
    assert_eq!(late(&mut bench, 8, Some(1)), ["Late"], "node 1 is not lost");
    assert_eq!(late(&mut bench, 9, Some(2)), ["Redirect"]);
    assert_eq!(late(&mut bench, 10, None), ["Late"], "one was sent");
    missing.set(0);
    assert_eq!(late(&mut bench, 11, None), ["Late"]);
}

#[test]
fn two_lanes_that_wait_get_one_spare_once_and_the_next_one_later() {
    let mut bench = entrance(3);
    stand_by(&mut bench, 7);
    let ((first, sent), (_second, none)) = (vacate(&mut bench, 1..2), vacate(&mut bench, 3..4));
    assert_eq!((sent, none), (1, 0));
    first.set(0);
    stand_by(&mut bench, 8);
    assert_eq!((bench.sent_to(7), bench.sent_to(8)), (vec!["Redirect".to_owned()], vec!["Redirect".to_owned()]));
    stand_by(&mut bench, 9);
    assert_eq!(standing(&bench), 1, "no lane waits any more");
}

#[test]
fn a_node_that_was_sent_and_does_not_join_is_replaced_by_the_next_spare() {
    let mut bench = entrance(1);
    stand_by(&mut bench, 7);
    stand_by(&mut bench, 8);
    let (missing, sent) = vacate(&mut bench, 1..2);
    assert_eq!((sent, standing(&bench)), (1, 1));
    live(&mut bench, &[0, 8], 4000 * MS);
    assert_eq!(standing(&bench), 1);
    live(&mut bench, &[0, 8], 2000 * MS);
    assert_eq!(standing(&bench), 0);
    // Both join after all; the lane refuses one of them, which comes back.
    missing.set(0);
    stand_by(&mut bench, 9);
    assert_eq!(standing(&bench), 1);
}

#[test]
fn a_node_that_joins_frees_no_other_place() {
    let mut bench = entrance(2);
    stand_by(&mut bench, 7);
    let (missing, sent) = vacate(&mut bench, 1..3);
    assert_eq!(sent, 1);
    missing.set(1);
    stand_by(&mut bench, 8);
    stand_by(&mut bench, 9);
    assert_eq!(standing(&bench), 1, "two of the three were sent");
}

#[test]
fn spares_that_do_not_fit_the_session_are_refused() {
    let mut bench = entrance(1);
    introduce(&mut bench, 7, Request { node: None, per_node: Some(3) }, true);
    assert_eq!(bench.sent_to(7), ["Bye"]);
    bench.prove(8, TOKEN, Request::default());
    let join = Join { name: "other".into(), rack: String::new(), is_spare: true, functions: vec!["of another".into()] };
    bench.send_from(8, Message::Join(join));
    assert_eq!(bench.sent_to(8), ["Bye"]);
    assert!(bench.is_closed(7) && bench.is_closed(8));
    bench.done();
    bench.prove(9, "another secret of many words", Request::default());
    assert!(bench.is_closed(9) && standing(&bench) == 0);
    // A lane whose address is not the session's.
    let mut bench = Bench::running(1);
    stand_by(&mut bench, 7);
    assert_eq!(bench.sent_to(7), ["Bye"]);
}

#[test]
fn the_lane_outlives_its_nodes_and_tells_spares_of_its_end() {
    let mut bench = entrance(1);
    stand_by(&mut bench, 7);
    bench.on(Event::Hung(conn(0), None));
    assert_eq!(bench.done(), ["node 1 (host) with workers 0 to 1 lost: its connection was closed"]);
    assert!(bench.engine.accepts() && bench.engine.room() > 0);
    bench.submit(&call(1));
    stand_by(&mut bench, 8);
    assert_eq!(standing(&bench), 2);
    bench.on(Event::Close(SILENCE));
    assert_eq!((bench.sent_to(7), bench.sent_to(8)), (vec!["Shutdown".to_owned()], vec!["Shutdown".to_owned()]));
    bench.pass(SILENCE);
    assert_eq!(bench.done(), ["Over"]);
}
