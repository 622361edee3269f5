//! Sessions of nodes that get other numbers of workers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco::error::ErrorKind;
use disco::{Announce, Builder, Deadlines, Error, LaneSession, SessionKind, WorkerId, block_on};
use rustix::process::{Pid, Signal, kill_process};

use super::programs::{ask, builder, end, node, wait_for_end_of};
use crate::workers::{NOBODY, lost};

super::tests!(
    lost_nodes_are_dropped_and_the_others_are_numbered_anew,
    trees_of_nodes_shrink_and_grow,
    nodes_of_other_machines_leave_and_join,
    a_part_of_a_node_can_not_leave,
    messages_name_workers_by_their_numbers,
);

/// Kills a process and waits for the loss.
fn kill(session: &LaneSession, pid: i64) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    lost(session);
}

fn numbers(resized: &disco::Resized) -> Vec<i64> {
    resized.numbers.iter().map(|number| number.map_or(-1, WorkerId::wire)).collect()
}

/// The processes of all workers.
fn pids(session: &LaneSession) -> Vec<i64> {
    block_on(session.get_all(&block_on(session.call("tests.pid", ())).unwrap())).unwrap()
}

/// Checks that everything follows the numbers 0 to `workers`, and that all workers meet in barriers.
fn check(session: &LaneSession, workers: usize, nodes: usize) {
    let world = session.world();
    assert_eq!((world.size(), world.nodes()), (workers, nodes));
    block_on(session.init_ccl("tcp", &[])).unwrap();
    block_on(session.call("tests.barriers", (5, NOBODY))).unwrap();
    block_on(session.sync_all()).unwrap();
    let status = session.status();
    assert_eq!(status.workers.iter().map(|it| it.worker).collect::<Vec<_>>(), (0..workers).collect::<Vec<_>>());
    let first: Vec<usize> = status.nodes.iter().map(|it| it.first_worker).collect();
    assert_eq!(first, (1..nodes).map(|it| it * workers / nodes).collect::<Vec<_>>(), "{status:?}");
    let recordings = session.observer().recordings(usize::MAX, Duration::from_secs(5)).unwrap();
    assert!(recordings.len() == workers && recordings.iter().all(|(_, recording)| recording.is_ok()));
}

fn lost_nodes_are_dropped_and_the_others_are_numbered_anew() {
    for (kind, function) in [(SessionKind::Threads, "tests.pid"), (SessionKind::Processes, "tests.parent")] {
        let session = Builder::nodes(4, 2).node_options(|nodes| nodes.workers = kind).start().unwrap();
        let before = block_on(session.call("tests.pid", ())).unwrap();
        let pids: Vec<i64> = block_on(session.get_all(&before)).unwrap();
        kill(&session, ask(&session, function, 2));
        let resized = block_on(session.resize(6)).unwrap();
        assert_eq!(numbers(&resized), [0, 1, -1, -1, 2, 3, 4, 5]);
        assert_eq!(block_on(session.get_all::<i64>(&before)).unwrap(), [&pids[..2], &pids[4..]].concat());
        check(&session, 6, 3);
        // The next one is lost by its new number.
        kill(&session, ask(&session, function, 3));
        let resized = block_on(session.resize(8)).unwrap();
        assert_eq!(numbers(&resized), [0, 1, -1, -1, 2, 3]);
        assert_eq!(resized.workers, [4, 5, 6, 7].map(WorkerId::new));
        let error = block_on(session.value(&before, WorkerId::new(7))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotRestored { epoch: resized.epoch });
        block_on(session.recover()).unwrap();
        check(&session, 8, 4);
        // A replacement after it.
        kill(&session, ask(&session, function, 6));
        let replaced = block_on(session.replace_lost()).unwrap();
        assert_eq!(replaced.workers, [6, 7].map(WorkerId::new));
        check(&session, 8, 4);
        block_on(session.shutdown()).unwrap();
    }
}

fn trees_of_nodes_shrink_and_grow() {
    // A chain, and a tree of width 2.
    for fan_out in [1, 2] {
        let session = Builder::nodes(6, 1)
            .node_options(|nodes| {
                nodes.fan_out = Some(fan_out);
                nodes.workers = SessionKind::Threads;
            })
            .start()
            .unwrap();
        let pids = pids(&session);
        assert_eq!(numbers(&block_on(session.resize(4)).unwrap()), [0, 1, 2, 3, -1, -1]);
        check(&session, 4, 4);
        pids[4..].iter().for_each(|pid| wait_for_end_of(*pid));
        block_on(session.resize(6)).unwrap();
        check(&session, 6, 6);
        // Those behind the lost node are lost with it, or not.
        kill(&session, pids[3]);
        block_on(session.resize(3)).unwrap();
        check(&session, 3, 3);
        block_on(session.resize(5)).unwrap();
        check(&session, 5, 5);
        block_on(session.shutdown()).unwrap();
    }
}

fn nodes_of_other_machines_leave_and_join() {
    let nodes = Arc::new(Mutex::new(Vec::new()));
    let started = nodes.clone();
    let session = builder(3, 2).node_options(|nodes| {
        nodes.announce = Some(Announce::new(move |announcement| {
            let node = || node(announcement.address).spawn().unwrap();
            started.lock().unwrap().extend((0..announcement.nodes).map(|_| node()));
            Ok(())
        }))
    });
    let session = session.start().unwrap();
    check(&session, 6, 3);
    block_on(session.resize(4)).unwrap();
    check(&session, 4, 2);
    block_on(session.resize(8)).unwrap();
    check(&session, 8, 4);
    block_on(session.shutdown()).unwrap();
    let nodes = std::mem::take(&mut *nodes.lock().unwrap());
    assert_eq!(nodes.len(), 4, "two at first, and two more");
    for node in nodes {
        let output = end(node);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

fn a_part_of_a_node_can_not_leave() {
    let session = Builder::nodes(2, 2).start().unwrap();
    let text = |workers| block_on(session.resize(workers)).unwrap_err().to_string();
    assert_eq!(text(3), "resize to 3: each node has 2 workers, so the number must be a multiple of that");
    kill(&session, ask(&session, "tests.pid", 3));
    assert_eq!(
        text(4),
        "resize to 4: only whole nodes can leave, which have 2 workers here, and worker 3 would; end the process of the node of a \
         lost worker, and ask again"
    );
    block_on(session.resize(2)).unwrap();
    check(&session, 2, 1);
    block_on(session.shutdown()).unwrap();
}

fn messages_name_workers_by_their_numbers() {
    for (kind, function) in [(SessionKind::Threads, "tests.pid"), (SessionKind::Processes, "tests.parent")] {
        let limits = Deadlines::default().with_close(Duration::from_millis(300));
        let session =
            Builder::nodes(4, 2).node_options(|nodes| nodes.workers = kind).deadlines(limits).start().unwrap();
        kill(&session, ask(&session, function, 2));
        block_on(session.resize(6)).unwrap();
        block_on(session.init_ccl("tcp", &[])).unwrap();

        // Worker 4 aborts worker 5, on the same node.
        let failed = block_on(session.call("tests.fail_beside", (4,))).unwrap();
        block_on(session.sync_all()).unwrap_err();
        block_on(session.recover()).unwrap();
        let aborted = block_on(session.value(&failed, WorkerId::new(5))).unwrap_err().to_string();
        assert!(aborted.starts_with("worker 5: tests.fail_beside (command "), "{aborted}");
        // The abort may come before the barrier begins.
        let cause = ["aborted, because worker 4: ", "broken since: worker 4: "];
        assert!(cause.iter().any(|cause| aborted.contains(cause)), "{aborted}");
        block_on(session.recover()).unwrap();

        block_on(session.call("tests.hang", (5,))).unwrap();
        let Err(Error::Stuck { workers, .. }) = block_on(session.shutdown()) else { panic!("worker 5 has left") };
        assert!(workers.starts_with("worker 5 (") && !workers.contains(", worker"), "{workers}");
    }
}
