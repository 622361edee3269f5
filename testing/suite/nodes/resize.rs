//! Sessions of nodes that get other numbers of workers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco::{Announce, Builder, Deadlines, Error, LaneSession, SessionKind, WorkerId, block_on};
use rustix::process::{Pid, Signal, kill_process};

use super::programs::{ask, builder, end, node};
use crate::workers::{NOBODY, lost};

super::tests!(
    nodes_of_other_machines_leave_and_join,
    a_part_of_a_node_can_not_leave,
    messages_name_workers_by_their_numbers,
);

/// Kills a process and waits for the loss.
fn kill(session: &LaneSession, pid: i64) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    lost(session);
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
        "resize to 4: only whole nodes can leave, which have 2 workers here, and worker 3 would; replace the lost workers, or \
         end the processes of their nodes, and ask again"
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
