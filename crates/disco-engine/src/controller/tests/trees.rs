//! Tests of lanes whose nodes relay for others.

use std::time::Duration;

use disco_core::error::LossCause;
use disco_core::wire::{Assignment, Join, Message, Packet, Times};
use disco_core::worker::WorkerConfig;
use disco_core::{Command, WorkerRange, World};

use super::{Bench, FAN_OUT, MS, SILENCE, TOKEN, conn, frame, functions, secret};
use crate::controller::{Event, Missing, NodeTerms, Terms, Tree};
use crate::handshake::Request;
use crate::tree::Forest;

/// Number of nodes, of which the first relays for the second.
const NODES: u32 = FAN_OUT as u32 + 1;
/// The slot of the connection of each node that is a child: node 5 has slot 4. Node 4 relays for node 5.
const RELAY: u32 = 3;

impl Bench {
    /// A lane to one node more than the fan-out, each of which has joined.
    fn tree() -> Self {
        let mut bench = Self::nodes(NODES as usize);
        (0..NODES).for_each(|slot| bench.join(slot, Some(slot + 1)));
        bench
    }

    /// [`Self::tree`], which has started.
    fn running_tree() -> Self {
        let mut bench = Self::tree();
        bench.send_from(RELAY, Message::Listens(vec!["192.0.2.1:4000".into()]));
        bench.pass(Duration::ZERO);
        (0..=RELAY).for_each(|slot| bench.send_from(slot, Message::Ready));
        assert_eq!(bench.done(), ["Started(Ok(()))"]);
        bench.written.clear();
        bench
    }

    /// The messages to a connection, decoded.
    fn messages_to(&self, slot: u32) -> Vec<Message> {
        let mine = self.written.iter().filter(|(to, ..)| *to == conn(slot));
        mine.map(|(_, bytes, _)| Message::decode(Packet::split(bytes).unwrap().0).unwrap()).collect()
    }

    fn from(&mut self, slot: u32, workers: std::ops::Range<u32>, message: Message) {
        self.send_from(slot, Message::From { workers: WorkerRange::new(workers), message: Box::new(message) });
    }
}

/// The node of an assignment, its workers, and the sizes of the subtrees behind it.
fn assigned(messages: &[Message]) -> (u32, WorkerRange, Vec<u32>) {
    let [Message::Assign(Assignment { node, workers, behind, .. })] = messages else { panic!("{messages:?}") };
    (*node, *workers, behind.to_vec())
}

#[test]
fn a_node_beyond_the_fan_out_is_sent_to_its_parent_once_the_parent_listens() {
    let mut bench = Bench::tree();
    assert_eq!((bench.sent_to(RELAY), bench.sent_to(0)), (vec!["Relay".to_owned()], vec![]));
    assert!(!bench.is_closed(4));
    bench.send_from(RELAY, Message::Listens(vec!["192.0.2.1:4000".into()]));
    bench.pass(Duration::ZERO);
    assert_eq!(assigned(&bench.messages_to(0)), (1, WorkerRange::new(0..2), vec![]));
    assert_eq!(assigned(&bench.messages_to(RELAY)), (4, WorkerRange::new(6..10), vec![1]));
    let redirect = bench.messages_to(4);
    let [Message::Redirect { node: 5, addresses, start }] = &redirect[..] else { panic!("{redirect:?}") };
    assert_eq!(addresses, &["192.0.2.1:4000"]);
    assert!(*start > Duration::from_secs(26) && *start <= Duration::from_secs(27), "90 % of the time left: {start:?}");
    assert!(bench.is_closed(4));
    (0..=RELAY).for_each(|slot| bench.send_from(slot, Message::Ready));
    assert_eq!(bench.done(), ["Started(Ok(()))"]);
}

#[test]
fn a_node_that_leaves_before_it_listens_may_be_replaced() {
    let mut bench = Bench::tree();
    bench.on(Event::Hung(conn(RELAY), None));
    bench.join(9, Some(4));
    assert_eq!(bench.sent_to(9), ["Relay"]);
    bench.send_from(9, Message::Listens(vec!["192.0.2.1:4000".into()]));
    bench.pass(Duration::ZERO);
    assert_eq!((bench.sent_to(4), bench.sent_to(9)), (vec!["Redirect".to_owned()], vec!["Assign".to_owned()]));
}

#[test]
fn a_node_that_does_not_listen_is_named_when_the_start_times_out() {
    let mut bench = Bench::tree();
    for _ in 0..31 {
        (0..NODES).for_each(|slot| bench.send_from(slot, Message::Alive(Times::default())));
        bench.pass(1000 * MS);
    }
    let failed = bench.done().join("; ");
    assert!(failed.contains("nodes that are to relay for others do not listen: host"), "{failed}");
}

#[test]
fn frames_go_to_the_children_only_and_messages_come_from_workers_of_the_whole_subtree() {
    let mut bench = Bench::running_tree();
    bench.submit(&frame(1, Command::SyncAll));
    bench.drain();
    let sent: Vec<_> = (0..NODES).map(|slot| bench.sent_to(slot).len()).collect();
    assert_eq!(sent, [1, 1, 1, 1, 0]);
    bench.from(RELAY, 6..10, Message::Reply { seq: 1, reply: Ok(disco_core::Value::None) });
    assert_eq!(bench.done(), ["Replies { workers: WorkerRange { first: 6, len: 4 }, seq: 1 }"]);
    bench.from(RELAY, 9..10, Message::Output { is_err: false, line: b"a line".as_slice().into() });
    assert!(bench.done()[0].starts_with("Output { node: 5, worker: WorkerId(9)"));
}

#[test]
fn a_lost_node_is_named_with_the_nodes_that_it_relayed_for() {
    let mut bench = Bench::running_tree();
    bench.on(Event::Hung(conn(RELAY), None));
    let lost = "node 4 (host) with node 5, which it relayed for, and workers 6 to 9 lost: its connection was closed";
    assert_eq!(bench.done(), [lost]);
}

#[test]
fn a_lost_node_or_worker_behind_another_node_is_named_itself() {
    let mut bench = Bench::running_tree();
    bench.from(RELAY, 8..10, Message::Lost { cause: LossCause::ConnectionClosed, whole: true });
    assert_eq!(bench.done(), ["node 5 (host) with workers 8 to 9 lost: its connection was closed"]);
    bench.from(RELAY, 9..10, Message::Lost { cause: LossCause::ThreadEnded(None), whole: false });
    assert_eq!(bench.done(), ["worker 9 lost: on node 5 (host): its thread ended before shutdown"]);
}

#[test]
fn a_node_that_is_silent_while_the_lane_closes_is_named_with_its_workers() {
    let mut bench = Bench::nodes_with(1, 1000 * MS, true);
    bench.join(0, Some(1));
    bench.send_from(0, Message::Ready);
    bench.on(Event::Close(500 * MS));
    bench.pass(3000 * MS);
    let stuck = bench.engine.stuck().unwrap();
    assert!(stuck[1].starts_with("worker 1 (") && stuck[1].ends_with("; node 1 (host) does not answer)"), "{stuck:?}");
}

#[test]
fn a_node_that_was_lost_before_the_lane_closes_is_not_named_again() {
    let mut bench = Bench::nodes_with(1, 1000 * MS, true);
    bench.join(0, Some(1));
    bench.send_from(0, Message::Ready);
    bench.pass(1500 * MS);
    bench.on(Event::Close(500 * MS));
    bench.pass(3000 * MS);
    assert_eq!(bench.engine.stuck(), Some(&[][..]));
}

#[test]
fn a_loss_behind_another_node_fails_the_start_of_all() {
    let mut bench = Bench::tree();
    bench.send_from(RELAY, Message::Listens(vec!["192.0.2.1:4000".into()]));
    bench.pass(Duration::ZERO);
    bench.written.clear();
    bench.from(RELAY, 9..10, Message::Lost { cause: LossCause::ThreadEnded(None), whole: false });
    assert_eq!(bench.done()[0], "failed: worker 9 lost: on node 5 (host): its thread ended before shutdown");
    assert_eq!(bench.sent_to(0)[0], "Bye");
}

/// The state of each node, as operators see it.
fn states(bench: &Bench) -> Vec<String> {
    bench.engine.nodes(bench.now).into_iter().map(|(_, node)| node.state.to_string()).collect()
}

#[test]
fn the_status_of_a_node_lost_behind_another_one_is_ended_with_the_cause() {
    let mut bench = Bench::running_tree();
    bench.from(RELAY, 8..10, Message::Lost { cause: LossCause::ConnectionClosed, whole: true });
    assert_eq!(states(&bench)[3..], ["running", "ended: its connection was closed"]);
}

#[test]
fn the_status_of_a_node_behind_a_lost_one_names_the_lost_one_and_the_cause() {
    let mut bench = Bench::running_tree();
    bench.on(Event::Hung(conn(RELAY), None));
    let cause = "ended: node 4 (host), which relayed for it, is lost: its connection was closed";
    assert_eq!(states(&bench)[3..], ["ended: its connection was closed", cause]);
}

#[test]
fn the_status_of_the_nodes_behind_a_lost_relay_behind_another_one_names_that_relay() {
    let nodes = 7 * FAN_OUT as u32;
    let mut bench = Bench::nodes(nodes as usize);
    (0..nodes).for_each(|slot| bench.join(slot, Some(slot + 1)));
    let relays: Vec<u32> = (0..nodes).filter(|slot| bench.sent_to(*slot) == ["Relay"]).collect();
    relays.iter().for_each(|slot| bench.send_from(*slot, Message::Listens(vec!["192.0.2.1:4000".into()])));
    bench.pass(Duration::ZERO);
    // Behind node 1, node 3 relays for node 4.
    assert_eq!(assigned(&bench.messages_to(0)), (1, WorkerRange::new(0..14), vec![1, 2, 1, 1, 2, 1]));
    (0..nodes).for_each(|slot| bench.send_from(slot, Message::Ready));
    bench.from(0, 4..8, Message::Lost { cause: LossCause::ConnectionClosed, whole: true });
    let cause = "ended: node 3 (host), which relayed for it, is lost: its connection was closed";
    assert_eq!(states(&bench)[1..5], ["running", "ended: its connection was closed", cause, "running"]);
}

#[test]
fn processes_of_nodes_behind_others_are_killed_at_the_end() {
    let mut bench = Bench::nodes(NODES as usize);
    (0..NODES).for_each(|slot| bench.on(Event::Started(slot as usize, Some(100 + slot))));
    (0..NODES).for_each(|slot| bench.join(slot, Some(slot + 1)));
    bench.send_from(RELAY, Message::Listens(vec!["192.0.2.1:4000".into()]));
    bench.pass(Duration::ZERO);
    (0..=RELAY).for_each(|slot| bench.send_from(slot, Message::Ready));
    bench.done();
    bench.on(Event::Dropped);
    (0..NODES as usize - 1).for_each(|place| bench.on(Event::Ended(place, None)));
    assert!(!bench.done().iter().any(|action| action.contains("Over")), "node 5 runs");
    bench.pass(2000 * MS);
    assert_eq!(bench.done().last().unwrap(), "Kill(4)");
    bench.on(Event::Ended(4, None));
    assert_eq!(bench.done(), ["Over"]);
}

/// The engine of node 4, which relays for nodes 5 to 7, of which node 5 relays for node 6.
fn relay() -> Bench {
    let world = World::new(16, 1).unwrap();
    let forest = Forest::new([2, 1, 1].into()).unwrap();
    let behind = forest.sizes();
    let tree = Tree::Fixed { parent: 4, forest };
    let (secret, names, silence) = (secret(TOKEN), Vec::new(), SILENCE);
    let terms = NodeTerms {
        secret,
        world,
        tree,
        names,
        per_node: 2,
        silence,
        max_pending: 256,
        stays_open: false,
        has_standby: false,
        missing: Missing::default(),
        report: |_| {},
    };
    let config = WorkerConfig::new(world);
    let (workers, heartbeat, start) = (WorkerRange::new(8..14), 1000 * MS, 30_000 * MS);
    let assignment =
        Assignment { node: 4, workers, behind, processes: true, config, heartbeat, silence: SILENCE, start };
    Bench::new(Terms::Nodes(terms, assignment))
}

#[test]
fn a_node_that_relays_admits_its_children_and_no_other_node() {
    let mut bench = relay();
    for node in [None, Some(1), Some(6)] {
        bench.ask_to_join(1, node);
        assert_eq!(bench.sent_to(1), ["Bye"], "{node:?}");
        bench.done.clear();
    }
    bench.join(2, Some(7));
    bench.join(3, Some(5));
    assert_eq!(assigned(&bench.messages_to(3)), (5, WorkerRange::new(8..12), vec![1]));
    assert_eq!(assigned(&bench.messages_to(2)), (7, WorkerRange::new(12..14), vec![]));
    bench.done();
    [2, 3].into_iter().for_each(|slot| bench.send_from(slot, Message::Ready));
    assert_eq!(bench.done(), ["Started(Ok(()))"]);
    bench.on(Event::Hung(conn(3), None));
    let lost = bench.done();
    assert_eq!(
        lost,
        ["node 5 (host) with node 6, which it relayed for, and workers 8 to 11 lost: its connection was closed"]
    );
}

#[test]
fn a_connection_without_the_token_is_refused_by_a_node_that_relays() {
    let mut bench = relay();
    bench.prove(1, "another secret of many words", Request { node: Some(5), per_node: None });
    assert!(bench.is_closed(1));
    bench.pass(31_000 * MS);
    let failed = bench.done().remove(0);
    assert!(
        failed.ends_with("node 5, node 7 did not join; refused: 127.0.0.1:1001: its token does not match"),
        "{failed}"
    );
}

#[test]
fn a_child_that_does_not_come_is_named() {
    let mut bench = relay();
    bench.join(2, Some(7));
    for _ in 0..31 {
        bench.send_from(2, Message::Alive(Times::default()));
        bench.pass(1000 * MS);
    }
    assert_eq!(bench.done()[0], "failed: start: no end after 30s: node 5 did not join");
}

#[test]
fn nodes_of_one_rack_relay_for_each_other() {
    const ALL: u32 = 40;
    let mut bench = Bench::nodes(ALL as usize);
    // Racks of 12, 8, 10 and 10 nodes, whose nodes join in turn.
    let rack = |slot: u32| match slot % 10 {
        0..=2 => "a",
        3..=4 => "b",
        5..=6 => "c",
        7..=9 => "d",
        _ => unreachable!(),
    };
    for slot in 0..ALL {
        bench.prove(slot, TOKEN, Request::default());
        let join =
            Join { name: format!("host{slot:02}"), rack: rack(slot).into(), is_spare: false, functions: functions() };
        bench.send_from(slot, Message::Join(join));
    }
    bench.pass(Duration::ZERO);
    let relays = (0..ALL).filter(|slot| bench.sent_to(*slot).contains(&"Relay".to_owned()));
    let racks: std::collections::BTreeSet<_> = relays.map(rack).collect();
    assert_eq!(racks.len(), 4, "a subtree begins in each rack: {racks:?}");
}
