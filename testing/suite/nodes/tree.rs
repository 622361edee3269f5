//! Sessions in which nodes relay for nodes.
//!
//! Node k has worker k. With fan-out 2, nodes 1 and 4 are children of the controller; 2 and 3 are behind 1; 5 and 6 are
//! behind 4, and 7 is behind 6.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};

use disco::error::LossCause;
use disco::{
    Builder, Deadlines, Error, LaneSession, SessionKind, Tensor, Token, Value, WorkerId, WorkerRange, block_on,
};
use disco_conformance::waiting::wait_until_in_collective;
use disco_core::function;
use disco_core::wire::{Join, Message, Packet};
use disco_engine::handshake::{GREETING_BYTES, NodeHandshake, Request, Secret, VERDICT_BYTES};
use rustix::process::{Pid, Signal, kill_process};

use super::first_line;
use super::programs::{HEARTBEAT, TOKEN, ask, builder, command, end, node, wait_for_end_of, with};
use crate::workers::NOBODY;

super::tests!(
    commands_values_and_the_store_reach_all_nodes_of_a_tree,
    nodes_that_a_session_starts_form_a_tree_and_end_with_it,
    a_tree_forms_over_link_local_addresses,
    the_output_of_workers_behind_other_nodes_is_printed,
    a_failure_behind_other_nodes_aborts_all_workers_and_the_session_recovers,
    a_killed_node_is_lost_with_the_nodes_that_it_relayed_for,
    shutdown_names_a_stuck_worker_behind_other_nodes,
    all_nodes_end_when_the_controller_of_a_tree_is_killed,
    a_node_whose_parent_does_not_answer_gives_up_when_the_start_does,
    a_fan_out_of_zero_is_rejected,
    many_nodes_run_commands_and_end_after_the_death_of_a_relay,
);

/// Nodes of the session besides the controller's.
const NODES: u32 = 7;

/// A tree of [`NODES`] nodes, which are processes with one thread as worker each.
fn tree() -> (LaneSession, Vec<Child>) {
    tree_with(builder(1 + NODES as usize, 1).node_options(|nodes| nodes.fan_out = Some(2)))
}

fn tree_with(builder: Builder) -> (LaneSession, Vec<Child>) {
    let (session, nodes) = with(builder, |address| {
        (1..=NODES).map(|id| node(address).env("DISCO_NODE_ID", id.to_string()).spawn().unwrap()).collect()
    });
    (session.unwrap(), nodes)
}

fn commands_values_and_the_store_reach_all_nodes_of_a_tree() {
    for encrypt in [true, false] {
        let fan_out = if encrypt { 2 } else { 1 };
        let encrypts = if encrypt { "1" } else { "0" };
        let (session, nodes) = with(
            builder(1 + NODES as usize, 1).node_options(|nodes| {
                nodes.fan_out = Some(fan_out);
                nodes.encrypts = Some(encrypt);
            }),
            |address| {
                let start = |id: u32| {
                    let mut node = node(address);
                    node.env("DISCO_NODE_ID", id.to_string()).env("DISCO_ENCRYPT", encrypts).spawn().unwrap()
                };
                (1..=NODES).map(start).collect::<Vec<_>>()
            },
        );
        let session = session.unwrap();
        let pids: Vec<i64> = (1..=NODES).map(|worker| ask(&session, "tests.pid", worker)).collect();
        assert_eq!(pids, nodes.iter().map(|node| i64::from(node.id())).collect::<Vec<_>>());
        block_on(async {
            let large = Tensor::from_slice(&vec![3_u64; 1 << 17], [1 << 17]).unwrap();
            let sum = session.function("nodes.sum").await.unwrap();
            let sums = session.call(&sum, (large.clone(), large.clone())).await.unwrap();
            for worker in [1, 3, 7] {
                let sum: u64 = session.get(&sums, WorkerId::new(worker)).await.unwrap();
                assert_eq!(sum, 6 << 17);
                session.set(&sums, WorkerId::new(worker), Value::from(large.clone())).await.unwrap();
                let back: Tensor = session.get(&sums, WorkerId::new(worker)).await.unwrap();
                assert_eq!(back.to_vec::<u64>().unwrap(), vec![3; 1 << 17]);
            }
            let leaders = session.call("tests.store", (1,)).await.unwrap();
            let leaders = session.values(&leaders).await.unwrap();
            assert!(
                leaders.len() == 8 && leaders.iter().all(|leader| format!("{leader:?}") == format!("{:?}", leaders[0]))
            );
            session.sync_all().await.unwrap();
            session.shutdown().await.unwrap();
        });
        nodes.into_iter().for_each(|node| assert!(end(node).status.success()));
    }
}

fn nodes_that_a_session_starts_form_a_tree_and_end_with_it() {
    let session = Builder::nodes(4, 2).node_options(|nodes| nodes.fan_out = Some(1)).start().unwrap();
    let nodes = [2, 4, 6].map(|worker| ask(&session, "tests.parent", worker));
    block_on(session.sync_all()).unwrap();
    block_on(session.shutdown()).unwrap();
    assert_eq!(nodes.map(|pid| fs::exists(format!("/proc/{pid}")).unwrap()), [false; 3]);
}

/// An IPv6 link-local address of this machine with its interface, from the system's table.
fn link_local() -> Option<SocketAddr> {
    const SCOPE_LINK: &str = "20";
    let table = fs::read_to_string("/proc/net/if_inet6").ok()?;
    let line = table.lines().find(|line| line.split_whitespace().nth(3) == Some(SCOPE_LINK))?;
    let mut words = line.split_whitespace();
    let ip = u128::from_str_radix(words.next()?, 16).ok()?;
    let interface = u32::from_str_radix(words.next()?, 16).ok()?;
    Some(SocketAddrV6::new(ip.into(), 0, 0, interface).into())
}

fn a_tree_forms_over_link_local_addresses() {
    let Some(address) = link_local() else {
        return println!("skipped: no interface of this machine has an IPv6 link-local address");
    };
    let (session, nodes) = with(
        builder(4, 1).node_options(|nodes| {
            nodes.fan_out = Some(1);
            nodes.listen = Some(address.to_string());
        }),
        |address| [1, 2, 3].map(|id: u32| node(address).env("DISCO_NODE_ID", id.to_string()).spawn().unwrap()),
    );
    let session = session.unwrap();
    block_on(session.sync_all()).unwrap();
    block_on(session.shutdown()).unwrap();
    nodes.into_iter().for_each(|node| assert!(end(node).status.success()));
}

fn the_output_of_workers_behind_other_nodes_is_printed() {
    let output = command("tree-printer").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for worker in 1..4 {
        let line = format!("node {worker} worker {worker}");
        assert!(
            out.lines().any(|it| it.contains(&line) && it.contains(&format!("output of worker {worker}"))),
            "{out}"
        );
        assert!(err.lines().any(|it| it.contains(&line) && it.contains(&format!("error of worker {worker}"))), "{err}");
    }
}

fn a_failure_behind_other_nodes_aborts_all_workers_and_the_session_recovers() {
    let (session, nodes) = tree();
    block_on(async {
        session.init_ccl("tcp", &[]).await.unwrap();
        let (barriers, panic) =
            (session.function("tests.barriers").await.unwrap(), session.function("tests.panic").await.unwrap());
        // The other workers wait in a barrier for worker 7.
        session.call(&panic, (7,)).await.unwrap();
        let called = session.call(&barriers, (1, NOBODY)).await;
        let error = session.sync_all().await.unwrap_err();
        let Error::Worker(failure) = &error else { panic!("{error}") };
        assert_eq!((failure.worker, &*failure.operation), (WorkerId::new(7), "tests.panic"), "{error}");
        drop(called);
        session.recover().await.unwrap();
        session.init_ccl("tcp", &[]).await.unwrap();
        session.call("tests.barriers", (3, NOBODY)).await.unwrap();
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
    nodes.into_iter().for_each(|node| assert!(end(node).status.success()));
}

/// A lost node: its number, its workers and the cause.
fn lost(error: &Error) -> (u32, WorkerRange, LossCause) {
    let Error::Lost(loss) = error else { panic!("{error}") };
    (loss.node().unwrap().number, loss.workers(), loss.cause.clone())
}

/// All workers except worker 2 are in a collective. All nodes end.
fn a_killed_node_is_lost_with_the_nodes_that_it_relayed_for() {
    let (session, nodes) = tree_with(builder(8, 1).heartbeat(HEARTBEAT).node_options(|nodes| nodes.fan_out = Some(2)));
    let error = block_on(async {
        session.init_ccl("tcp", &[]).await.unwrap();
        session.call("tests.barrier_after_abort", (2,)).await.unwrap();
        wait_until_in_collective(&session, (0..8).filter(|worker| *worker != 2));
        kill_process(Pid::from_child(&nodes[3]), Signal::KILL).unwrap();
        let error = session.sync_all().await.unwrap_err();
        session.shutdown().await.unwrap();
        error
    });
    nodes.into_iter().for_each(|node| _ = end(node));
    assert_eq!(lost(&error), (4, WorkerRange::new(4..8), LossCause::ConnectionClosed), "{error}");
    let text = first_line(&error);
    let rest = ") with nodes 5 to 7, which it relayed for, and workers 4 to 7 lost: its connection was closed";
    assert!(text.starts_with("node 4 (") && text.ends_with(rest), "{text}");
}

fn shutdown_names_a_stuck_worker_behind_other_nodes() {
    let deadlines = Deadlines::default().with_close(Duration::from_millis(300));
    let (session, nodes) = tree_with(builder(8, 1).node_options(|nodes| nodes.fan_out = Some(2)).deadlines(deadlines));
    block_on(async {
        session.call("tests.hang", (7,)).await.unwrap();
        let error = session.shutdown().await.unwrap_err().to_string();
        assert!(error.starts_with("not stopped after 300ms: worker 7 ("), "{error}");
        assert!(error.contains("inside `tests.hang`") && !error.contains("worker 6"), "{error}");
    });
    nodes.into_iter().for_each(|node| _ = end(node));
}

fn all_nodes_end_when_the_controller_of_a_tree_is_killed() {
    use std::io::{BufRead as _, BufReader};
    let mut command = command("tree-controller");
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut controller = command.spawn().unwrap();
    let lines = BufReader::new(controller.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.map(Result::unwrap).take_while(|line| line != "ready").collect();
    assert_eq!(lines.len(), 4);
    controller.kill().unwrap();
    controller.wait().unwrap();
    lines.iter().flat_map(|line| line.split(' ')).for_each(|pid| wait_for_end_of(pid.parse().unwrap()));
}

/// Connects, and does a node's handshake.
fn prove(address: SocketAddr, token: &str, node: Option<u32>) -> disco::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting).unwrap();
    let secret = Secret::new(Token::new(token).unwrap(), Some(false)).unwrap();
    let (handshake, answer) = NodeHandshake::answer(&secret, &greeting, Request { node, per_node: None }).unwrap();
    stream.write_all(&answer).unwrap();
    let mut verdict = [0; VERDICT_BYTES];
    stream.read_exact(&mut verdict).unwrap();
    handshake.judge(&verdict).map(|_| stream)
}

/// A node that this test plays: its connection to the controller, and bytes that were read too early.
struct Played(TcpStream, Vec<u8>);

impl Played {
    /// Joins the controller as node `id`.
    fn join(address: SocketAddr, id: u32) -> Self {
        let mut played = Self(prove(address, TOKEN, Some(id)).unwrap(), Vec::new());
        let (functions, rack) = (function::names().into_iter().map(str::to_owned).collect(), String::new());
        played.send(&Message::Join(Join { name: "played".into(), rack, is_spare: false, functions }));
        played
    }

    fn send(&mut self, message: &Message) {
        self.0.write_all(&message.encode().unwrap()).unwrap();
    }

    /// The controller's next message, besides heartbeats.
    fn next(&mut self) -> Message {
        loop {
            while let Ok((packet, rest)) = Packet::split(&self.1) {
                let (message, rest) = (Message::decode(packet).unwrap(), rest.to_vec());
                self.1 = rest;
                if !matches!(message, Message::Alive(_)) {
                    return message;
                }
            }
            let mut part = [0; 4096];
            let came = self.0.read(&mut part).unwrap();
            assert!(came > 0, "the controller closes the connection");
            self.1.extend_from_slice(&part[..came]);
        }
    }
}

/// A node may wait for sessions for a day, but a parent's listener never comes back.
fn a_node_whose_parent_does_not_answer_gives_up_when_the_start_does() {
    let builder = builder(3, 1)
        .node_options(|nodes| {
            nodes.fan_out = Some(1);
            nodes.encrypts = Some(false);
        })
        .start_deadline(Duration::from_secs(3));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (session, child) = with(builder, |address| {
        let mut parent = Played::join(address, 1);
        let mut child = node(address);
        let child = child.env("DISCO_NODE_ID", "2").env("DISCO_ENCRYPT", "0").env("DISCO_JOIN_SECONDS", "86400");
        let child = child.spawn().unwrap();
        assert!(matches!(parent.next(), Message::Relay { everywhere: false }));
        parent.send(&Message::Listens(vec![silent.local_addr().unwrap().to_string()]));
        assert!(matches!(parent.next(), Message::Assign(_)));
        child
    });
    assert!(session.is_err());
    let said = String::from_utf8(end(child).stderr).unwrap();
    assert!(said.contains("joining the node that relays for this one at 127.0.0.1:"), "{said}");
}

fn a_fan_out_of_zero_is_rejected() {
    let error = builder(2, 1).node_options(|nodes| nodes.fan_out = Some(0)).start().unwrap_err().to_string();
    assert_eq!(error, "the fan-out of the tree of nodes is 0; it must be at least 1");
}

/// 256 processes on this machine.
fn many_nodes_run_commands_and_end_after_the_death_of_a_relay() {
    if std::env::var_os("DISCO_LONG_TESTS").is_none() {
        return println!("skipped: 256 nodes run with DISCO_LONG_TESTS=1 only");
    }
    const MANY: usize = 256;
    let builder = Builder::nodes(1 + MANY, 1).node_options(|nodes| {
        nodes.workers = SessionKind::Threads;
        nodes.fan_out = Some(8);
    });
    let start = Instant::now();
    let session = builder.start_deadline(Duration::from_secs(120)).silence(Duration::from_secs(30)).start().unwrap();
    println!("{MANY} nodes started in {:.1?}", start.elapsed());
    let pids: Vec<i64> = (1..=MANY as u32).map(|worker| ask(&session, "tests.pid", worker)).collect();
    let start = Instant::now();
    block_on(async {
        let function = session.function("tests.length").await.unwrap();
        for _ in 0..1000 {
            session.call(&function, ("a text",)).await.unwrap();
        }
        session.sync_all().await.unwrap();
        println!("1000 commands on {MANY} nodes in {:.1?}", start.elapsed());
        let start = Instant::now();
        for _ in 0..100 {
            session.sync_all().await.unwrap();
        }
        println!("a sync of all in {:.2?}", start.elapsed() / 100);
        // The first child of the controller, which relays for 31 nodes.
        kill_process(Pid::from_raw(pids[0] as i32).unwrap(), Signal::KILL).unwrap();
        let error = session.sync_all().await.unwrap_err();
        assert_eq!(lost(&error), (1, WorkerRange::new(1..33), LossCause::ConnectionClosed), "{error}");
        session.shutdown().await.unwrap();
    });
    pids.into_iter().for_each(wait_for_end_of);
}
