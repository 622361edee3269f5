//! The lane, as a session has it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::link::Shared;
use disco_core::wire::Assignment;
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Inbox, Result, WorkerRange};

use super::announce::{Announce, Announcement};
use super::transport::Tcp;
use crate::engine::controller::{Controller, NodeTerms, Terms};
use crate::reactor::{Lane, Reactor, Served, Waker};
use crate::remote_lane::{Peers, RemoteLane, Running};
use crate::token::Token;

/// What a [`NodeLane`] is made of.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of nodes, which share the lane's workers.
    pub nodes: usize,
    /// Where to listen: `HOST:PORT`, port 0 for any.
    pub listen: String,
    /// What nodes prove to have.
    pub token: Token,
    /// Who is told where nodes are to connect.
    pub announce: Announce,
    /// What each node is called; without them, by its number, and by the name of its host once it has said it.
    pub names: Vec<String>,
    /// Workers are processes, not threads, of their nodes.
    pub processes: bool,
    /// How workers behave.
    pub config: WorkerConfig,
    /// How long nodes may take to join and start their workers.
    pub start: Duration,
    /// How often each end says something.
    pub heartbeat: Duration,
    /// How long each end may be silent.
    pub silence: Duration,
}

/// The lane to workers of other nodes: it listens, announces where, and waits until all nodes have joined and started their workers.
/// Dropping it lets them go: nodes stop their workers, and nobody waits for them.
pub type NodeLane = RemoteLane<Options>;

impl Options {
    /// On the loopback; workers are processes; 30 s to start, something said each second, 5 s of silence.
    pub fn new(nodes: usize, token: Token, config: WorkerConfig) -> Self {
        Self {
            nodes,
            listen: "127.0.0.1:0".into(),
            token,
            announce: Announce::default(),
            names: Vec::new(),
            processes: true,
            config,
            start: Duration::from_secs(30),
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(5),
        }
    }
}

impl Peers for Options {
    const NAME: &'static str = "nodes";

    fn bring_up(&self, workers: WorkerRange, shared: Arc<Shared>, inbox: Arc<dyn Inbox>) -> Result<Running> {
        let Self { nodes, listen, announce, names, processes, config, start, heartbeat, silence, token } = self;
        let count = workers.len();
        if count == 0 || *nodes == 0 || !count.is_multiple_of(*nodes) {
            return Err(Error::invalid(format!("{nodes} nodes can't share {count} workers")));
        }
        let refused = |error: io::Error| Error::system("the system refuses a lane to nodes", error);
        let listener = TcpListener::bind(listen);
        let listener = listener.map_err(|error| Error::system(format!("can't listen on {listen}"), error))?;
        let address = listener.local_addr().map_err(refused)?;
        let waker = Arc::new(Waker::new().map_err(refused)?);
        let transport = Tcp::new(listener, waker.clone()).map_err(refused)?;
        let terms = NodeTerms {
            token: token.clone(),
            world: config.world,
            nodes: *nodes,
            names: names.clone(),
            per_node: count / nodes,
            silence: *silence,
        };
        let assignment = Assignment {
            node: 0,
            workers,
            processes: *processes,
            config: *config,
            heartbeat: *heartbeat,
            silence: *silence,
            start: *start,
        };
        let engine = Controller::new(Terms::Nodes(terms, assignment), Instant::now());
        let lane = Arc::new(Lane::new(engine, waker, None));
        let reactor = Reactor::new(lane, inbox, shared, *nodes, transport);
        let served = Served::start("disco-nodes", reactor).map_err(refused)?;
        let announcement = Announcement { address, nodes: *nodes, per_node: count / nodes };
        let served = match announce.tell(&announcement) {
            Ok(processes) => {
                served.adopt(processes.into_iter().map(|process| process.0).collect());
                served.wait_for_start()?
            }
            Err(error) => return Err(served.fail(error)),
        };
        Ok(Running::new(served, None))
    }
}
