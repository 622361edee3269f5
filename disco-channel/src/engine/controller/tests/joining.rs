//! Time while nodes join.

use super::*;

#[test]
fn a_node_that_froze_while_it_waited_joins_again() {
    let mut bench = Bench::nodes(2);
    bench.join(0, Some(1));
    bench.pass(1900 * MS);
    bench.join(1, Some(1));
    assert_eq!(bench.heard(1), ["Bye"], "node 1 is here already");
    bench.done();
    bench.pass(100 * MS);
    bench.join(2, Some(1));
    assert!(bench.is_closed(0), "node 1 said nothing for two heartbeats, and its successor gets its place");
    bench.join(3, Some(2));
    assert_eq!([2, 3].map(|slot| bench.heard(slot).pop().unwrap()), ["Assign", "Assign"]);
    assert!(bench.heard(0).iter().all(|said| said == "Alive"));
}

#[test]
fn a_node_that_does_not_match_the_session_is_refused_and_the_start_goes_on() {
    let mut bench = Bench::nodes(1);
    bench.prove(0, TOKEN, Request { node: Some(1), per_node: Some(7) });
    bench.say(0, Message::Join(Join { name: "small".into(), functions: functions() }));
    bench.prove(1, TOKEN, Request { node: Some(1), per_node: None });
    bench.say(1, Message::Join(Join { name: "old".into(), functions: vec!["theirs.only".into()] }));
    assert_eq!([bench.heard(0), bench.heard(1)], [["Bye"], ["Bye"]]);
    bench.done();
    bench.pass(31_000 * MS);
    let failed = bench.done().remove(0);
    let small =
        "small at 127.0.0.1:1000: it was told to have 7 workers, and nodes here have 2; old at 127.0.0.1:1001: ";
    assert!(
        failed.starts_with(&format!("failed: start: no end after 30s: node 1 did not join; sent away: {small}")),
        "{failed}"
    );
    assert!(failed.ends_with("; only it has: theirs.only"), "{failed}");

    let mut bench = Bench::nodes(1);
    bench.prove(0, TOKEN, Request { node: None, per_node: Some(7) });
    bench.say(0, Message::Join(Join { name: "small".into(), functions: functions() }));
    bench.join(1, None);
    assert_eq!([bench.heard(0), bench.heard(1)], [["Bye"], ["Assign"]]);
}

#[test]
fn a_node_that_waits_need_not_speak_as_often_as_one_that_works() {
    let mut bench = Bench::nodes_with(2, 1500 * MS);
    bench.join(0, Some(1));
    bench.pass(4900 * MS);
    assert!(!bench.is_closed(0));
    bench.join(1, None);
    assert_eq!([0, 1].map(|slot| bench.heard(slot).pop().unwrap()), ["Assign", "Assign"]);
    // Its workers take their time to start: silence counts from the assignment.
    bench.pass(1400 * MS);
    (0..2).for_each(|slot| bench.say(slot, Message::Ready));
    assert_eq!(bench.done(), ["Started(Ok(()))"]);
}

#[test]
fn strangers_that_say_nothing_or_too_little_are_sent_away_at_the_deadline() {
    let mut bench = Bench::nodes(1);
    bench.connect(0);
    bench.connect(1);
    bench.prove(2, TOKEN, Request::default());
    let magic = b"discnode\0\0\0\0\0\0\0\0\0\0";
    for byte in &magic[..5] {
        bench.pass(980 * MS);
        // A byte now and then helps nobody.
        bench.on(Event::Bytes(conn(1), vec![*byte]));
    }
    assert!((0..3).all(|slot| !bench.is_closed(slot)), "they have 5 s");
    bench.pass(100 * MS);
    assert!((0..3).all(|slot| bench.is_closed(slot)));
    bench.join(3, None);
    assert_eq!(bench.heard(3), ["Assign"]);
}

#[test]
fn a_node_that_is_gone_when_the_last_one_joins_is_waited_for_again() {
    let mut bench = Bench::nodes(2);
    bench.join(0, Some(1));
    bench.ask_to_join(1, Some(2));
    bench.ask_to_join(2, None);
    assert_eq!(bench.heard(2), ["Bye"], "all nodes are here");
    // Read behind the last JOIN, in the same pass.
    bench.on(Event::Hung(conn(0), None));
    bench.pass(Duration::ZERO);
    assert!(bench.heard(1).is_empty(), "node 1 is missing");
    bench.join(3, Some(1));
    assert_eq!([1, 3].map(|slot| bench.heard(slot).pop().unwrap()), ["Assign", "Assign"]);
}
