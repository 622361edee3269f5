//! The status of a running session: the controller's answers, and the clients that get them.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use disco::status::{NodeState, Status};
use disco::{Builder, Deadlines, JoinOptions, LaneSession, Token, WorkerRange, ask_status, block_on};
use disco_channel::nodes::{self, Announce, NodeLane};
use disco_channel::threads::ThreadLane;
use disco_conformance::waiting;
use disco_core::{Channel, WorkerConfig, World, worker};

use super::programs::{OTHER_TOKEN, TEST_TIMEOUT, TOKEN, builder, end, node, with};
use crate::workers::NOBODY;

super::tests!(
    the_status_of_a_session_has_its_nodes_and_what_each_worker_is_inside,
    the_status_names_the_failure_and_the_lost_node,
    a_session_answers_while_it_waits_for_nodes,
    the_status_has_the_nodes_of_all_lanes_of_a_session,
    clients_without_the_token_and_addresses_without_a_session_are_errors_with_the_reason,
    a_session_listens_at_the_address_of_the_session_before,
);

fn ask(address: SocketAddr, token: &str) -> disco::Result<Status> {
    ask_status(&JoinOptions::new(address.to_string(), Token::new(token).unwrap()))
}

/// Asks until the status is as expected.
fn wait_for(address: SocketAddr, is_expected: impl Fn(&Status) -> bool) -> Status {
    waiting::wait_for("the expected status", || Some(ask(address, TOKEN).unwrap()).filter(&is_expected))
}

/// A session with one other node, and its address.
fn listening(builder: Builder) -> (LaneSession, std::process::Child, SocketAddr) {
    let (session, (node, address)) = with(builder, |address| (node(address).spawn().unwrap(), address));
    (session.unwrap(), node, address)
}

fn the_status_of_a_session_has_its_nodes_and_what_each_worker_is_inside() {
    let (session, node, address) = listening(builder(2, 2).groups(2));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    block_on(async {
        let stay = session.function("tests.stay").await.unwrap();
        session.sync_all().await.unwrap();
        session.call(&stay, (3, path.as_str())).await.unwrap();
        session.call(&stay, (NOBODY, path)).await.unwrap();
    });
    let status = wait_for(address, |status| status.workers[3].unchanged > Some(Duration::from_millis(100)));
    assert_eq!((status.process, status.groups, status.failure.as_deref()), (std::process::id(), 2, None));
    assert!(status.uptime > Duration::ZERO && status.uptime < TEST_TIMEOUT);
    let kinds: Vec<&str> = status.workers.iter().map(|worker| worker.kind.as_str()).collect();
    assert_eq!(kinds, ["threads", "threads", "nodes", "nodes"]);
    assert_eq!(status.commands, 4);
    let stuck = &status.workers[3];
    assert_eq!((stuck.worker, stuck.function.as_deref(), stuck.lag), (3, Some("tests.stay"), 2));
    let [node_status] = &status.nodes[..] else { panic!("{status:?}") };
    assert_eq!((node_status.node, node_status.first_worker, node_status.workers), (1, 2, 2));
    assert!(node_status.name.starts_with("node 1 (") && node_status.state == NodeState::Running, "{node_status:?}");
    let connection = node_status.connection.as_ref().unwrap();
    assert!(connection.is_encrypted && connection.silence < TEST_TIMEOUT, "{connection:?}");
    assert!(connection.address.unwrap().ip().is_loopback());
    assert!(connection.round_trip > Some(Duration::ZERO), "{connection:?}");
    assert!(connection.sent_bytes > 100 && connection.received_bytes > 100, "{connection:?}");
    assert!(connection.sent_packets > 1 && connection.received_packets > 1, "{connection:?}");
    // The program's own view needs no connection, and has the same parts.
    let own = session.status();
    assert_eq!((own.commands, own.nodes.len(), own.workers.len()), (4, 1, 4));
    drop(file);
    block_on(session.shutdown()).unwrap();
    assert!(end(node).status.success());
    assert!(ask(address, TOKEN).unwrap_err().to_string().contains("Connection refused"));
}

fn the_status_names_the_failure_and_the_lost_node() {
    let (session, (nodes, address)) =
        with(builder(3, 1), |address| ([0, 1].map(|_| node(address).spawn().unwrap()), address));
    let session = session.unwrap();
    let [mut first, second] = nodes;
    first.kill().unwrap();
    first.wait().unwrap();
    let status = wait_for(address, |status| status.failure.is_some());
    let lost = status.nodes.iter().find(|node| matches!(node.state, NodeState::Ended(_))).unwrap();
    assert!(lost.connection.is_none());
    assert!(status.failure.unwrap().contains(" lost: its connection was closed"));
    drop(session);
    end(second);
}

fn a_session_answers_while_it_waits_for_nodes() {
    let (session, status) = with(builder(3, 1).start_deadline(Duration::from_secs(2)), |address| {
        let node = node(address).spawn().unwrap();
        let status = ask(address, TOKEN).unwrap();
        (status, node)
    });
    session.unwrap_err();
    assert_eq!(status.0.nodes.iter().filter(|node| node.state == NodeState::Expected).count(), 2);
    assert_eq!(end(status.1).status.code(), Some(1));
}

fn the_status_has_the_nodes_of_all_lanes_of_a_session() {
    let config = WorkerConfig::new(World::new(3, 1).unwrap());
    let (tell, told) = mpsc::channel();
    let lane = |worker: u32| {
        let mut options = nodes::Options::new(1, Token::new(TOKEN).unwrap(), config);
        let tell = tell.clone();
        options.processes = false;
        options.announce = Announce::new(move |announcement| {
            tell.send(announcement.address).unwrap();
            Ok(())
        });
        Arc::new(NodeLane::new(WorkerRange::new(worker..worker + 1), Arc::default(), options)) as Arc<dyn Channel>
    };
    let run = move |worker, endpoint| worker::run(worker, config, endpoint);
    let here = Arc::new(ThreadLane::new(WorkerRange::new(0..1), Arc::default(), run));
    let lanes: Vec<Arc<dyn Channel>> = vec![here, lane(1), lane(2)];
    let joining = thread::spawn(move || {
        [(); 2].map(|()| {
            let address: SocketAddr = told.recv().unwrap();
            (address, node(address).spawn().unwrap())
        })
    });
    let session = LaneSession::start(config.world, lanes, Deadlines::default()).unwrap();
    let joined = joining.join().unwrap();
    for (address, _) in &joined {
        let workers: Vec<_> = ask(*address, TOKEN).unwrap().nodes.iter().map(|node| node.first_worker).collect();
        assert_eq!(workers, [1, 2], "asked at {address}");
    }
    block_on(session.shutdown()).unwrap();
    joined.into_iter().for_each(|(_, node)| assert!(end(node).status.success()));
}

fn clients_without_the_token_and_addresses_without_a_session_are_errors_with_the_reason() {
    let (session, node, address) = listening(builder(2, 1));
    let failed = |address, token| ask(address, token).unwrap_err().to_string();
    let asking = |address: SocketAddr, why: &str| format!("asking the controller at {address} for its status: {why}");
    assert_eq!(failed(address, OTHER_TOKEN), asking(address, "the controller has another token"));
    block_on(session.shutdown()).unwrap();
    end(node);
    let why = "Connection refused (os error 111); only a session that waits for nodes listens: `disco run --nodes`, or \
               `NodeOptions::listen`";
    assert_eq!(failed(address, TOKEN), asking(address, why));
}

fn a_session_listens_at_the_address_of_the_session_before() {
    let (session, node, address) = listening(builder(2, 1));
    let taken =
        builder(2, 1).node_options(|nodes| nodes.listen = Some(address.to_string())).start().unwrap_err().to_string();
    assert!(taken.starts_with(&format!("can't listen on {address}, where process ")), "{taken}");
    block_on(session.shutdown()).unwrap();
    end(node);
    for _ in 0..3 {
        let (session, node, again) =
            listening(builder(2, 1).node_options(|nodes| nodes.listen = Some(address.to_string())));
        assert_eq!(again, address);
        block_on(session.shutdown()).unwrap();
        end(node);
    }
}
