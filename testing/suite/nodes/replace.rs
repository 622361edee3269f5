//! Lost nodes, and lost processes of nodes, that are replaced.

use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use disco::error::ErrorKind;
use disco::{Announce, Builder, Error, LaneSession, SessionKind, WorkerId, block_on};
use disco_conformance::waiting::{wait_until, wait_until_in_collective};
use rustix::process::{Pid, Signal, kill_process};

use super::first_line;
use super::programs::{HEARTBEAT, ask, brittle, builder, end, node, wait_for_end_of};
use crate::workers::{NOBODY, lost};

super::tests!(
    a_node_of_another_machine_can_replace_a_lost_one,
    processes_of_nodes_are_replaced_without_their_nodes,
    a_process_of_a_node_that_can_not_start_is_named_and_replaced_later,
    a_node_that_dies_while_it_starts_a_process_is_replaced,
);

pub(crate) fn kill(pid: i64) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Kills the process `pid` of nodes with the workers `lost`, which are replaced. All workers then meet in barriers.
pub(crate) fn replace(session: &LaneSession, pid: i64, of: std::ops::Range<u32>) {
    replace_all(session, &[pid], &of.collect::<Vec<_>>());
}

/// Kills processes of nodes with the workers `of`, which are replaced. All workers then meet in barriers. Returns the first
/// loss.
fn replace_all(session: &LaneSession, killed: &[i64], of: &[u32]) -> Error {
    block_on(session.init_ccl("tcp", &[])).unwrap();
    let pids = block_on(session.call("tests.pid", ())).unwrap();
    let before = block_on(session.get_all::<i64>(&pids)).unwrap();
    // The others are inside a barrier that a lost worker never enters.
    block_on(session.call("tests.barriers", (1, of[0]))).unwrap();
    wait_until_in_collective(session, (0..before.len()).filter(|worker| *worker != of[0] as usize));
    killed.iter().copied().for_each(kill);
    let loss = lost(session);
    let mut replaced = Vec::new();
    while replaced.len() < of.len() {
        if !replaced.is_empty() {
            lost(session);
        }
        replaced.extend(block_on(session.replace_lost()).unwrap().workers);
    }
    replaced.sort();
    assert_eq!(replaced, of.iter().copied().map(WorkerId::new).collect::<Vec<_>>());
    for worker in 0..before.len() as u32 {
        let pid = block_on(session.get::<i64>(&pids, WorkerId::new(worker)));
        if of.contains(&worker) {
            let kind = pid.unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::NotRestored { .. }), "{kind:?}");
            // The register of a get that has failed.
            block_on(session.recover()).unwrap();
        } else {
            assert_eq!(pid.unwrap(), before[worker as usize])
        }
    }
    for backend in ["local", "tcp"] {
        block_on(session.init_ccl(backend, &[])).unwrap();
        block_on(session.call("tests.barriers", (5, NOBODY))).unwrap();
        block_on(session.sync_all()).unwrap();
    }
    let status = session.status();
    assert_eq!(status.workers.iter().map(|it| it.worker).collect::<Vec<_>>(), (0..before.len()).collect::<Vec<_>>());
    assert!(status.nodes.iter().map(|it| it.node).eq(1..=status.nodes.len() as u32), "{status:?}");
    let recordings = session.observer().recordings(usize::MAX, Duration::from_secs(5)).unwrap();
    assert!(recordings.len() == before.len() && recordings.iter().all(|(_, recording)| recording.is_ok()));
    loss
}

fn a_node_of_another_machine_can_replace_a_lost_one() {
    let nodes = Arc::new(Mutex::new(Vec::new()));
    let started = nodes.clone();
    let session = builder(2, 2).heartbeat(HEARTBEAT).node_options(|nodes| {
        nodes.announce = Some(Announce::new(move |announcement| {
            started.lock().unwrap().push(node(announcement.address).spawn().unwrap());
            Ok(())
        }))
    });
    let session = session.start().unwrap();
    replace(&session, ask(&session, "tests.pid", 2), 2..4);
    assert_eq!(finish(&session, &nodes), [None, Some(0)]);
}

/// The text of the loss of a process of a node that was killed.
fn assert_killed(loss: &Error, worker: u32, node: u32) {
    let text = first_line(loss);
    assert!(text.starts_with(&format!("worker {worker} lost: on node {node} (")), "{text}");
    assert!(text.ends_with("its process ended: signal: 9 (SIGKILL)"), "{text}");
}

fn processes_of_nodes_are_replaced_without_their_nodes() {
    let builder = Builder::nodes(3, 2).node_options(|nodes| nodes.fan_out = Some(1));
    let session = builder.heartbeat(HEARTBEAT).start().unwrap();
    let (pid, node) = (|worker| ask(&session, "tests.pid", worker), |worker| ask(&session, "tests.parent", worker));
    // Node 2 is behind node 1.
    let nodes = [2, 4].map(node);
    // Twice the number of calls, and one more for new memory: a node's program keeps the memory of its workers.
    let kept = || {
        let calls = block_on(session.call("replace.add", (1, 4))).unwrap();
        block_on(session.get_all::<i64>(&calls)).unwrap()
    };
    assert_eq!(kept(), [3; 6]);
    assert_killed(&replace_all(&session, &[pid(4)], &[4]), 4, 2);
    assert_killed(&replace_all(&session, &[pid(3)], &[3]), 3, 1);
    // The new process, and later all processes of the node.
    assert_killed(&replace_all(&session, &[pid(3)], &[3]), 3, 1);
    let new = pid(3);
    wait_until("the node's program to name the new process only", || {
        let sessions = disco_channel::programs::ask(nodes[0] as u32).unwrap().sessions;
        let known = sessions.iter().flat_map(|it| &it.workers).filter(|it| it.worker == 3);
        known.map(|it| it.process.map(i64::from)).eq([Some(new)])
    });
    replace_all(&session, &[pid(2), pid(3), pid(5)], &[2, 3, 5]);
    assert_eq!(kept(), [4; 6]);
    assert_eq!([2, 3, 4, 5].map(node), [nodes[0], nodes[0], nodes[1], nodes[1]]);
    // Of node 2, no process is that of the start.
    replace_all(&session, &[pid(2), nodes[1]], &[2, 4, 5]);
    assert_eq!(kept(), [6, 6, 6, 6, 3, 3]);
    assert_eq!([2, 3].map(node), [nodes[0]; 2]);
    let successor = node(4);
    assert!(successor != nodes[1] && node(5) == successor);
    replace_all(&session, &[pid(5)], &[5]);
    // Node 2 has another parent by now.
    replace_all(&session, &[nodes[0]], &[2, 3]);
    assert_eq!([4, 5].map(node), [successor; 2]);
    block_on(session.resize(4)).unwrap();
    wait_for_end_of(successor);
    assert_killed(&replace_all(&session, &[pid(2)], &[2]), 2, 1);
    block_on(session.shutdown()).unwrap();
}

/// A session with one other node, whose new processes fail while the file exists. The node's successors are alike.
fn brittle_pair(broken: &Path) -> (LaneSession, Arc<Mutex<Vec<Child>>>) {
    let (started, broken) = (Arc::new(Mutex::new(Vec::new())), broken.to_owned());
    let children = started.clone();
    let builder = builder(2, 2).heartbeat(HEARTBEAT).node_options(|nodes| {
        nodes.workers = SessionKind::Processes;
        nodes.announce = Some(Announce::new(move |announcement| {
            let child = brittle(&mut node(announcement.address), &broken).spawn().unwrap();
            children.lock().unwrap().push(child);
            Ok(())
        }));
    });
    (builder.start().unwrap(), started)
}

/// Ends the session, and returns the exit statuses of its nodes.
fn finish(session: &LaneSession, nodes: &Mutex<Vec<Child>>) -> Vec<Option<i32>> {
    block_on(session.shutdown()).unwrap();
    let nodes = std::mem::take(&mut *nodes.lock().unwrap());
    nodes.into_iter().map(|node| end(node).status.code()).collect()
}

fn a_process_of_a_node_that_can_not_start_is_named_and_replaced_later() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken");
    let (session, nodes) = brittle_pair(&broken);
    let node = ask(&session, "tests.parent", 2);
    fs::write(&broken, "").unwrap();
    kill(ask(&session, "tests.pid", 3));
    let loss = lost(&session);
    for _ in 0..2 {
        let error = block_on(session.replace_lost()).unwrap_err().to_string();
        assert!(error.starts_with("node 1 (") && error.contains("worker 3 lost: "), "{error}");
        assert!(error.contains("its process ended: exit status: 7 before it connected"), "{error}");
        assert_eq!(first_line(&block_on(session.sync_all()).unwrap_err()), first_line(&loss));
    }
    fs::remove_file(&broken).unwrap();
    assert_eq!(block_on(session.replace_lost()).unwrap().workers, [WorkerId::new(3)]);
    replace(&session, ask(&session, "tests.pid", 2), 2..3);
    assert_eq!([2, 3].map(|worker| ask(&session, "tests.parent", worker)), [node; 2]);
    assert_eq!(finish(&session, &nodes), [Some(0)]);
}

fn a_node_that_dies_while_it_starts_a_process_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let [broken, hangs] = ["broken", "hangs"].map(|name| folder.path().join(name));
    let (session, nodes) = brittle_pair(&broken);
    let node = ask(&session, "tests.parent", 2);
    fs::write(&broken, hangs.to_str().unwrap()).unwrap();
    kill(ask(&session, "tests.pid", 3));
    lost(&session);
    let replaced = thread::scope(|scope| {
        let replaced = scope.spawn(|| block_on(session.replace_lost()));
        let pid = || fs::read_to_string(&hangs).ok()?.parse::<i64>().ok();
        wait_until("the start of the new process", || pid().is_some());
        fs::remove_file(&broken).unwrap();
        kill(node);
        // It does not reach `disco::init`, where it would find that its node is gone.
        kill(pid().unwrap());
        replaced.join().unwrap()
    });
    assert_eq!(replaced.unwrap().workers, [2, 3].map(WorkerId::new));
    replace(&session, ask(&session, "tests.pid", 3), 3..4);
    assert_eq!(finish(&session, &nodes), [None, Some(0)]);
}
