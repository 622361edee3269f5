//! Lost nodes that are replaced.

use std::sync::Mutex;

use disco::error::ErrorKind;
use disco::{Announce, Builder, LaneSession, WorkerId, block_on};
use disco_conformance::waiting::wait_until_in_collective;
use rustix::process::{Pid, Signal, kill_process};

use super::first_line;
use super::programs::{HEARTBEAT, ask, builder, node};
use crate::workers::{NOBODY, lost};

super::tests!(a_node_of_another_machine_can_replace_a_lost_one, a_worker_of_a_node_can_not_be_replaced_alone,);

pub(crate) fn kill(pid: i64) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Kills the process `pid` of nodes with the workers `lost`, which are replaced. All workers then meet in barriers.
pub(crate) fn replace(session: &LaneSession, pid: i64, of: std::ops::Range<u32>) {
    block_on(session.init_ccl("tcp", &[])).unwrap();
    let pids = block_on(session.call("tests.pid", ())).unwrap();
    let before = block_on(session.get_all::<i64>(&pids)).unwrap();
    // The others are inside a barrier that the lost workers never enter.
    block_on(session.call("tests.barriers", (1, of.start))).unwrap();
    wait_until_in_collective(session, (0..before.len()).filter(|worker| *worker != of.start as usize));
    kill(pid);
    lost(session);
    let replaced = block_on(session.replace_lost()).unwrap();
    assert_eq!(replaced.workers, of.clone().map(WorkerId::new).collect::<Vec<_>>());
    for worker in 0..before.len() as u32 {
        let pid = block_on(session.get::<i64>(&pids, WorkerId::new(worker)));
        if of.contains(&worker) {
            assert_eq!(pid.unwrap_err().kind(), ErrorKind::NotRestored { epoch: replaced.epoch })
        } else {
            assert_eq!(pid.unwrap(), before[worker as usize])
        }
        // The register of a get that has failed.
        if of.contains(&worker) {
            block_on(session.recover()).unwrap();
        }
    }
    block_on(session.init_ccl("tcp", &[])).unwrap();
    block_on(session.call("tests.barriers", (5, NOBODY))).unwrap();
    block_on(session.sync_all()).unwrap();
    let status = session.status();
    assert_eq!(status.workers.iter().map(|it| it.worker).collect::<Vec<_>>(), (0..before.len()).collect::<Vec<_>>());
    assert!(status.nodes.iter().map(|it| it.node).eq(1..=status.nodes.len() as u32), "{status:?}");
}

fn a_node_of_another_machine_can_replace_a_lost_one() {
    let nodes = std::sync::Arc::new(Mutex::new(Vec::new()));
    let started = nodes.clone();
    let session = builder(2, 2).heartbeat(HEARTBEAT).node_options(|nodes| {
        nodes.announce = Some(Announce::new(move |announcement| {
            started.lock().unwrap().push(node(announcement.address).spawn().unwrap());
            Ok(())
        }))
    });
    let session = session.start().unwrap();
    replace(&session, ask(&session, "tests.pid", 2), 2..4);
    block_on(session.shutdown()).unwrap();
    let nodes = std::mem::take(&mut *nodes.lock().unwrap());
    let ends: Vec<_> = nodes.into_iter().map(|node| super::programs::end(node).status.code()).collect();
    assert_eq!(ends, [None, Some(0)]);
}

fn a_worker_of_a_node_can_not_be_replaced_alone() {
    let session = Builder::nodes(3, 2).start().unwrap();
    // The last node has worker 3 now, which was worker 5.
    kill(ask(&session, "tests.parent", 2));
    lost(&session);
    block_on(session.resize(4)).unwrap();
    kill(ask(&session, "tests.pid", 3));
    let loss = lost(&session);
    let error = block_on(session.replace_lost()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "worker 3 can't be replaced: only whole nodes can, which have 2 workers here; end the process of the node, and ask again"
    );
    assert_eq!(first_line(&block_on(session.sync_all()).unwrap_err()), first_line(&loss));
    block_on(session.shutdown()).unwrap();
}
