//! Sessions in which nodes relay for nodes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use disco::error::LossCause;
use disco::{Builder, Error, SessionKind, Token, WorkerRange, block_on};
use disco_core::function;
use disco_core::wire::{Join, Message, Packet};
use disco_engine::handshake::{GREETING_BYTES, NodeHandshake, Request, Secret, VERDICT_BYTES};
use rustix::process::{Pid, Signal, kill_process};

use super::programs::{TOKEN, ask, builder, command, end, node, wait_for_end_of, with};

super::tests!(
    a_tree_forms_over_link_local_addresses,
    the_output_of_workers_behind_other_nodes_is_printed,
    a_node_whose_parent_does_not_answer_gives_up_when_the_start_does,
    a_fan_out_of_zero_is_rejected,
    many_nodes_run_commands_and_end_after_the_death_of_a_relay,
);

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

/// A lost node: its number, its workers and the cause.
fn lost(error: &Error) -> (u32, WorkerRange, LossCause) {
    let Error::Lost(loss) = error else { panic!("{error}") };
    (loss.node().unwrap().number, loss.workers(), loss.cause.clone())
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
