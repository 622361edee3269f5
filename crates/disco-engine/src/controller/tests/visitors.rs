//! Connections to a lane of nodes that has started: clients that ask for the status, and late nodes.

use super::*;

/// A client that has proved to have the token asks for the status.
fn ask(bench: &mut Bench, slot: u32) {
    bench.prove(slot, TOKEN, Request::default());
    bench.send_from(slot, Message::AskStatus);
}

fn is_answered(bench: &Bench, slot: u32) -> bool {
    bench.done.iter().any(|action| matches!(action, Action::SendStatus(asked) if *asked == conn(slot)))
}

#[test]
fn a_client_with_the_token_gets_the_status_during_the_start_and_after_it() {
    let mut bench = Bench::nodes(1);
    ask(&mut bench, 7);
    assert!(is_answered(&bench, 7));
    let mut bench = Bench::running(1);
    ask(&mut bench, 7);
    assert!(is_answered(&bench, 7) && !bench.is_closed(7), "the client closes the connection");
    bench.on(Event::Hung(conn(7), None));
    assert!(bench.is_closed(7));
    ask(&mut bench, 8);
    bench.pass(5000 * MS);
    assert!(bench.is_closed(8), "a client that does not close the connection has 5 s");
}

#[test]
fn a_client_without_the_token_gets_no_status() {
    let mut bench = Bench::running(1);
    bench.prove(7, "another secret of many words", Request::default());
    assert!(bench.is_closed(7));
    bench.connect(8);
    bench.send_from(8, Message::AskStatus);
    assert!(bench.is_closed(8) && !is_answered(&bench, 8), "a message before the proof");
}

#[test]
fn a_node_that_comes_after_the_start_is_told_that_the_session_has_started() {
    let mut bench = Bench::running(1);
    bench.prove(7, TOKEN, Request::default());
    bench.send_from(
        7,
        Message::Join(Join { name: "late".into(), rack: "".into(), is_spare: false, functions: functions() }),
    );
    assert_eq!(bench.sent_to(7), ["Late"]);
    assert!(bench.is_closed(7));
    bench.on(Event::Hung(conn(0), None));
    assert_eq!(bench.done(), ["node 1 (host) with workers 0 to 1 lost: its connection was closed", "Over"]);
}

#[test]
fn a_session_that_has_started_accepts_ten_connections_at_once_and_pauses() {
    let mut bench = Bench::running(1);
    (10..19).for_each(|slot| bench.connect(slot));
    assert!(bench.engine.accepts());
    bench.connect(19);
    assert!(!bench.engine.accepts());
    bench.pass(100 * MS);
    assert!(bench.engine.accepts());
}

#[test]
fn a_lane_that_closes_accepts_no_connections() {
    let mut bench = Bench::running(1);
    ask(&mut bench, 7);
    bench.on(Event::Close(SILENCE));
    assert!(bench.is_closed(7) && !bench.engine.accepts());
    assert!(bench.done.iter().any(|action| matches!(action, Action::StopAccepting)));
}

#[test]
fn a_lane_that_answers_no_status_stops_accepting_when_all_nodes_have_joined() {
    let mut bench = Bench::nodes_with(1, SILENCE, false);
    bench.connect(7);
    bench.join(0, None);
    assert!(bench.is_closed(7) && !bench.engine.accepts());
    assert!(bench.done.iter().any(|action| matches!(action, Action::StopAccepting)));
}
