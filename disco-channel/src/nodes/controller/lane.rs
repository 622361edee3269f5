//! The lane, as a session has it.

use std::fmt;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use disco_core::channel::{Progress, Signal};
use disco_core::link::Shared;
use disco_core::wire::Assignment;
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, Error, Frame, Inbox, Result, WorkerId, WorkerRange};

use super::announce::{Announce, Announcement};
use super::transport::Tcp;
use crate::engine::controller::{Controller, NodeTerms, Terms, pack};
use crate::reactor::Waker;
use crate::reactor::{Lane, Reactor, Served};
use crate::token::Token;

/// What a [`NodeLane`] is made of.
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

/// The lane to workers of other nodes. Dropping it lets them go: nodes stop their workers, and nobody waits for them.
pub struct NodeLane {
    workers: WorkerRange,
    options: Options,
    shared: Arc<Shared>,
    started: OnceLock<Served>,
}

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

impl NodeLane {
    /// Makes a lane to `workers`, an equal share of which is on each node; those share the store of `shared` with the workers
    /// of other lanes.
    pub fn new(workers: WorkerRange, shared: Arc<Shared>, options: Options) -> Self {
        Self { workers, options, shared, started: OnceLock::new() }
    }

    fn started(&self) -> Result<&Served> {
        self.started.get().ok_or_else(|| self.error("was not started"))
    }

    fn error(&self, why: &str) -> Error {
        Error::state(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        format!("lane to the nodes of workers {:?}", self.workers.indices())
    }

    fn listen(&self) -> Result<TcpListener> {
        let listen = &self.options.listen;
        TcpListener::bind(listen).map_err(|error| Error::system(format!("can't listen on {listen}"), error))
    }
}

#[async_trait]
impl Channel for NodeLane {
    fn workers(&self) -> WorkerRange {
        self.workers
    }

    /// Listens, announces where, and waits until all nodes have joined and started their workers.
    ///
    /// # Errors
    /// It was started before; the workers can't be shared by the nodes; the address is taken; nodes do not
    /// come, are another program's or can't start their workers: which, and why.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let Options { nodes, announce, names, processes, config, start, heartbeat, silence, token, .. } = &self.options;
        let count = self.workers.len();
        if count == 0 || *nodes == 0 || !count.is_multiple_of(*nodes) {
            return Err(Error::invalid(format!("{}: {nodes} nodes can't share {count} workers", self.name())));
        }
        if self.started.get().is_some() {
            return Err(self.error("was started before"));
        }
        let refused = |error: std::io::Error| Error::system(format!("{}: the system refuses it", self.name()), error);
        let listener = self.listen()?;
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
            workers: self.workers,
            processes: *processes,
            config: *config,
            heartbeat: *heartbeat,
            silence: *silence,
            start: *start,
        };
        let engine = Controller::new(Terms::Nodes(terms, assignment), Instant::now());
        let lane = Arc::new(Lane::new(engine, waker, None));
        let reactor = Reactor::new(lane, inbox, self.shared.clone(), *nodes, transport);
        let served = Served::start("disco-nodes", reactor).map_err(refused)?;
        let announcement = Announcement { address, nodes: *nodes, per_node: count / nodes };
        let served = match announce.tell(&announcement) {
            Ok(processes) => {
                served.adopt(processes.into_iter().map(|process| process.0).collect());
                served.wait_for_start()?
            }
            Err(error) => return Err(served.fail(error)),
        };
        self.started.set(served).map_err(|_| self.error("was started before"))
    }

    fn crosses(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        self.started().map_or(0, |lane| lane.look(Controller::room))
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        // Encoded before the lock is taken: the reactor thread needs that for heartbeats.
        let packed = pack(frame);
        self.started()?.with(|engine, now| {
            engine.check(|| self.name())?;
            engine.note(frame.command());
            engine.submit_packed(frame, packed?, now)
        })
    }

    fn urgent(&self, signal: Signal) -> Result<()> {
        self.started()?.signal(signal).map_err(|why| self.error(&why))
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        self.started().map(|lane| lane.look(|engine| engine.progress(worker))).unwrap_or_default()
    }

    /// Blocks the calling thread rather than the task: no timer here could wake a task. Nodes that have not left in time are
    /// told to end at once.
    async fn close(&self, limit: Duration) -> Result<()> {
        self.started.get().map_or(Ok(()), |served| served.close(limit))
    }
}

impl fmt::Debug for NodeLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLane").field("workers", &self.workers).finish_non_exhaustive()
    }
}
