//! Nodes that stand by, and nodes that come late to a session with lost nodes.

use std::net::SocketAddr;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco::{Announce, LaneSession, ReplacementPolicy, block_on};
use disco_conformance::waiting::wait_until;
use disco_testing::random::Random;
use rustix::process::Pid;

use super::programs::{HEARTBEAT, ask, builder, end, node, read_until};
use super::replace::{kill, replace};
use crate::workers::{NOBODY, kill_after, lost};

super::tests!(
    a_spare_takes_the_place_of_a_lost_node_without_an_announcement,
    a_node_that_tries_again_and_again_takes_the_place_of_a_lost_one,
    random_nodes_and_spares_are_killed_again_and_again,
);

/// A session that waits for nodes. Those of the first announcement are started, and of later ones if `starts_more`.
struct Host {
    session: LaneSession,
    /// The address and the number of nodes of each announcement.
    announced: Arc<Mutex<Vec<(SocketAddr, usize)>>>,
    nodes: Arc<Mutex<Vec<Child>>>,
}

impl Host {
    fn start(nodes: usize, per_node: usize, policy: ReplacementPolicy, starts_more: bool) -> Self {
        let (announced, started) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (seen, children) = (announced.clone(), started.clone());
        let builder = builder(nodes, per_node).heartbeat(HEARTBEAT).replacement(policy).node_options(|nodes| {
            nodes.announce = Some(Announce::new(move |announcement| {
                let mut seen = seen.lock().unwrap();
                seen.push((announcement.address, announcement.nodes));
                if seen.len() == 1 || starts_more {
                    // A spare may come meanwhile, and leave no place for a new node.
                    let start = || node(announcement.address).env("DISCO_JOIN_SECONDS", "5").spawn().unwrap();
                    let new = (0..announcement.nodes).map(|_| start());
                    children.lock().unwrap().extend(new);
                }
                Ok(())
            }))
        });
        Self { session: builder.start().unwrap(), announced, nodes: started }
    }

    fn announcements(&self) -> Vec<usize> {
        self.announced.lock().unwrap().iter().map(|(_, nodes)| *nodes).collect()
    }

    /// Starts a node that connects to the session's address.
    fn node(&self, is_spare: bool) -> Child {
        let mut command = node(self.announced.lock().unwrap()[0].0);
        command.env("DISCO_SPARE", if is_spare { "1" } else { "0" }).env("DISCO_JOIN_SECONDS", "10");
        command.spawn().unwrap()
    }

    /// Waits until `count` nodes stand by.
    fn await_spares(&self, count: usize) {
        wait_until(&format!("{count} spares"), || self.session.status().spares.len() == count);
    }

    fn pid(&self, worker: u32) -> i64 {
        ask(&self.session, "tests.pid", worker)
    }

    /// Ends the session, and the nodes that it has started.
    fn finish(self) {
        block_on(self.session.shutdown()).unwrap();
        std::mem::take(&mut *self.nodes.lock().unwrap()).into_iter().for_each(|node| _ = end(node));
    }
}

fn a_spare_takes_the_place_of_a_lost_node_without_an_announcement() {
    // With two nodes, the lane to which spares connect loses all its nodes.
    for nodes in [2, 3] {
        let host = Host::start(nodes, 2, ReplacementPolicy::when_asked(), false);
        for _ in 0..2 {
            let spare = host.node(true);
            host.await_spares(1);
            let status = host.session.status().spares.remove(0);
            assert!(status.is_ready && status.name.is_some() && status.connection.unwrap().address.is_some());
            replace(&host.session, host.pid(2), 2..4);
            assert_eq!(host.pid(2), i64::from(spare.id()));
            host.nodes.lock().unwrap().push(spare);
            host.await_spares(0);
        }
        assert_eq!(host.announcements(), [nodes - 1]);
        host.finish();
    }
}

fn a_node_that_tries_again_and_again_takes_the_place_of_a_lost_one() {
    let host = Host::start(3, 1, ReplacementPolicy::when_asked(), false);
    let mut late = host.node(false);
    read_until(&mut late, "disco: waiting for the controller at ");
    replace(&host.session, host.pid(1), 1..2);
    assert_eq!(host.pid(1), i64::from(late.id()));
    host.nodes.lock().unwrap().push(late);
    host.finish();
}

/// All workers meet.
fn check(host: &Host) {
    block_on(host.session.init_ccl("tcp", &[])).unwrap();
    block_on(host.session.call("tests.barriers", (3, NOBODY))).unwrap();
    block_on(host.session.sync_all()).unwrap();
}

fn random_nodes_and_spares_are_killed_again_and_again() {
    let host = Host::start(4, 1, ReplacementPolicy::at_once(), true);
    let mut random = Random::new(11);
    for _ in 0..8 {
        let spare = host.node(true);
        if random.below(2) == 0 {
            host.await_spares(1);
        }
        if random.below(3) == 0 {
            // It ends before or while it joins.
            kill_after(Duration::from_millis(random.below(20) as u64), Pid::from_child(&spare));
        }
        host.nodes.lock().unwrap().push(spare);
        let victims: std::collections::BTreeSet<u32> =
            (0..=random.below(2)).map(|_| 1 + random.below(3) as u32).collect();
        let pids: Vec<i64> = victims.iter().map(|worker| host.pid(*worker)).collect();
        pids.into_iter().for_each(kill);
        lost(&host.session);
        while block_on(host.session.sync_all()).is_err() {}
        while block_on(host.session.init_ccl("tcp", &[])).is_err() {}
        check(&host);
        let pids: Vec<i64> = (0..4).map(|worker| host.pid(worker)).collect();
        assert_eq!(std::collections::BTreeSet::from_iter(&pids).len(), 4, "{pids:?}");
    }
    host.finish();
}
