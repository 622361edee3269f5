//! Nodes, workers and controllers that die or stop.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use disco::error::{LossCause, ProcessEnd};
use disco::{Builder, Error, LaneSession, SessionKind, WorkerRange, block_on};
use disco_conformance::waiting::wait_until_in_collective;
use rustix::process::{Pid, Signal, kill_process};

use super::first_line;
use super::programs::{self, HEARTBEAT, ask, builder, end, pair, wait_for_end_of};

super::tests!(
    a_node_killed_inside_a_collective_is_lost_and_the_other_ranks_are_aborted,
    a_stopped_node_is_lost_after_the_silence_limit,
    a_worker_killed_on_a_node_is_lost_with_its_node_in_the_error,
    nodes_and_their_workers_end_when_their_controller_is_killed,
    nodes_and_their_workers_end_when_their_controller_is_stopped,
    a_stopped_node_that_the_session_started_is_killed,
    shutdown_returns_after_the_nodes_that_the_session_started_have_ended,
);

fn signal(pid: i64, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Sends a signal to the process `pid` while all workers except worker 3 are in a collective; returns the session's
/// error.
fn error_after_signal(session: &LaneSession, pid: i64, what: Signal) -> Error {
    block_on(async {
        session.init_ccl("tcp", &[]).await.unwrap();
        session.call("tests.barriers", (1, 3)).await.unwrap();
        wait_until_in_collective(session, 0..3);
        signal(pid, what);
        let error = session.sync_all().await.unwrap_err();
        // Worker 1 was in the collective, and the abort has ended it.
        let limit = Duration::from_secs(10);
        let start = std::time::Instant::now();
        session.shutdown().await.unwrap();
        assert!(start.elapsed() < limit, "shutdown waited for the lost worker");
        error
    })
}

fn a_node_killed_inside_a_collective_is_lost_and_the_other_ranks_are_aborted() {
    for kind in [SessionKind::Processes, SessionKind::Threads] {
        let (session, node) = pair(builder(2, 2).node_options(|nodes| nodes.workers = kind).heartbeat(HEARTBEAT));
        let workers = [2, 3].map(|worker| ask(&session, "tests.pid", worker));
        let loss = error_after_signal(&session, node.id().into(), Signal::KILL);
        let error = first_line(&loss);
        assert!(
            error.starts_with("node 1 (") && error.ends_with(") with workers 2 to 3 lost: its connection was closed"),
            "{error}"
        );
        let Error::Lost(loss) = loss else { panic!("{loss}") };
        let lost = (loss.workers(), loss.node().map(|node| node.number), &loss.cause);
        assert_eq!(lost, (WorkerRange::new(2..4), Some(1), &LossCause::ConnectionClosed));
        assert_eq!(end(node).status.code(), None);
        workers.into_iter().for_each(wait_for_end_of);
    }
}

fn a_stopped_node_is_lost_after_the_silence_limit() {
    let (session, mut node) = pair(builder(2, 2).silence(Duration::from_millis(500)).heartbeat(HEARTBEAT));
    let error = error_after_signal(&session, node.id().into(), Signal::STOP);
    let error = first_line(&error);
    assert!(error.starts_with("node 1 (") && error.ends_with("lost: no message came from it for 500ms"), "{error}");
    node.kill().unwrap();
    node.wait().unwrap();
}

fn a_worker_killed_on_a_node_is_lost_with_its_node_in_the_error() {
    let (session, node) =
        pair(builder(2, 2).node_options(|nodes| nodes.workers = SessionKind::Processes).heartbeat(HEARTBEAT));
    let loss = error_after_signal(&session, ask(&session, "tests.pid", 3), Signal::KILL);
    let error = first_line(&loss);
    assert!(error.starts_with("worker 3 lost: on node 1 ("), "{error}");
    assert!(error.ends_with("): its process ended: signal: 9 (SIGKILL)"), "{error}");
    let Error::Lost(loss) = loss else { panic!("{loss}") };
    let killed =
        LossCause::ProcessEnded { end: ProcessEnd::Signaled { signal: 9, core_dumped: false }, connected: true };
    let lost = (loss.workers(), loss.node().map(|node| node.number), &loss.cause);
    assert_eq!(lost, (WorkerRange::new(3..4), Some(1), &killed));
    end(node);
}

fn nodes_and_their_workers_end_when_their_controller_is_killed() {
    let mut controller = programs::command("controller").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pids = Vec::new();
    for line in BufReader::new(controller.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if line == "ready" {
            break;
        }
        pids.extend(line.split(' ').map(|pid| pid.parse::<i64>().unwrap()));
    }
    assert_eq!(pids.len(), 8);
    controller.kill().unwrap();
    controller.wait().unwrap();
    pids.into_iter().for_each(wait_for_end_of);
}

fn nodes_and_their_workers_end_when_their_controller_is_stopped() {
    let mut controller = programs::command("controller").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(controller.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.map(Result::unwrap).take_while(|line| line != "ready").collect();
    signal(controller.id().into(), Signal::STOP);
    // They end after the silence limit of 2 s. Some are children of the stopped controller and stay zombies.
    for pid in lines.iter().flat_map(|line| line.split(' ')) {
        wait_for_end_of(pid.parse().unwrap());
    }
    controller.kill().unwrap();
    controller.wait().unwrap();
}

fn a_stopped_node_that_the_session_started_is_killed() {
    let silence = Duration::from_secs(1);
    let start = || {
        let session = Builder::nodes(2, 1)
            .node_options(|nodes| nodes.workers = SessionKind::Threads)
            .silence(silence)
            .start()
            .unwrap();
        let pid = ask(&session, "tests.pid", 1);
        signal(pid, Signal::STOP);
        (session, pid)
    };
    // Killed after the silence limit.
    let (session, pid) = start();
    let error = block_on(session.sync_all()).unwrap_err().to_string();
    assert!(error.ends_with("no message came from it for 1s"), "{error}");
    wait_for_end_of(pid);
    block_on(session.shutdown()).unwrap();
    // Killed when the session is dropped before the silence limit.
    let (session, pid) = start();
    drop(session);
    wait_for_end_of(pid);
}

fn shutdown_returns_after_the_nodes_that_the_session_started_have_ended() {
    let session = Builder::nodes(3, 1).start().unwrap();
    let nodes = [1, 2].map(|worker| ask(&session, "tests.parent", worker));
    block_on(session.shutdown()).unwrap();
    assert_eq!(nodes.map(|pid| fs::exists(format!("/proc/{pid}")).unwrap()), [false, false]);
}
