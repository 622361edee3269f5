//! The lane, as a session has it.

use std::fmt;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use disco_core::channel::{Progress, Signal};
use disco_core::link::Shared;
use disco_core::wire::{Assignment, Message};
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, WorkerId};

use super::announce::{Announce, Announcement};
use super::children::Children;
use super::crew::Crew;
use super::door::Door;
use super::printer::Printer;
use super::refused::Refused;
use super::roster::Roster;
use super::service::Service;
use crate::connection::Waker;
use crate::nodes::token::Token;

/// The largest frame that those get whom it does not concern.
const SMALL: usize = 4 << 10;

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
    workers: Range<WorkerId>,
    options: Options,
    shared: Arc<Shared>,
    started: OnceLock<Crew>,
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
    pub fn new(workers: Range<WorkerId>, shared: Arc<Shared>, options: Options) -> Self {
        Self { workers, options, shared, started: OnceLock::new() }
    }

    fn crew(&self) -> Result<&Crew> {
        self.started.get().ok_or_else(|| self.error("was not started"))
    }

    fn error(&self, why: &str) -> Error {
        Error::invalid(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        let (start, end) = (self.workers.start.index(), self.workers.end.index());
        format!("lane to the nodes of workers {start}..{end}")
    }

    fn listen(&self) -> Result<TcpListener> {
        let listen = &self.options.listen;
        TcpListener::bind(listen).map_err(|error| Error::invalid(format!("can't listen on {listen}: {error}")))
    }
}

#[async_trait]
impl Channel for NodeLane {
    fn workers(&self) -> Range<WorkerId> {
        self.workers.clone()
    }

    /// Listens, announces where, and waits until all nodes have joined and started their workers.
    ///
    /// # Errors
    /// It was started before; the workers can't be shared by the nodes; the address is taken; nodes do not
    /// come, are another program's or can't start their workers: which, and why.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let Options { nodes, announce, names, processes, config, start, heartbeat, silence, token, .. } = &self.options;
        let count = self.workers.end.index().saturating_sub(self.workers.start.index());
        if count == 0 || *nodes == 0 || !count.is_multiple_of(*nodes) {
            return Err(self.error(&format!("{nodes} nodes can't share {count} workers")));
        }
        if self.started.get().is_some() {
            return Err(self.error("was started before"));
        }
        let refused = |error: std::io::Error| self.error(&format!("the system refuses it: {error}"));
        let listener = self.listen()?;
        let address = listener.local_addr().map_err(refused)?;
        let waker = Arc::new(Waker::new().map_err(refused)?);
        let roster = Arc::new(Roster::new(self.workers.clone(), *nodes, names.clone(), waker));
        let (tell, told) = mpsc::channel();
        let service = Service {
            roster: roster.clone(),
            inbox,
            shared: self.shared.clone(),
            door: Some(Door::new(listener, token.clone(), config.world).map_err(refused)?),
            guests: Vec::new(),
            peers: Vec::new(),
            refused: Refused::default(),
            assignment: Assignment {
                node: 0,
                workers: self.workers.clone(),
                processes: *processes,
                config: *config,
                heartbeat: *heartbeat,
                silence: *silence,
                start: *start,
            },
            since: Instant::now(),
            ready: Some(tell),
            children: Children::default(),
            printer: Some(Printer::start().map_err(refused)?),
        };
        let thread = thread::Builder::new().name("disco-nodes".into()).spawn(|| service.run()).map_err(refused)?;
        let crew = Crew::new(roster, thread);
        let announcement = Announcement { address, nodes: *nodes, per_node: count / nodes };
        let ready = announce.tell(&announcement).and_then(|started| {
            *crew.roster.started() = started;
            crew.roster.waker.wake();
            told.recv().unwrap_or_else(|_| Err(Error::invalid("the service thread of a lane has ended")))
        });
        if let Err(error) = ready {
            crew.end();
            return Err(error);
        }
        self.started.set(crew).map_err(|_| self.error("was started before"))
    }

    fn crosses(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        self.started.get().map_or(0, |crew| crew.roster.room())
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let roster = &self.crew()?.roster;
        if roster.closed.load(Ordering::Acquire) {
            return Err(Error::Closed(self.name()));
        }
        if roster.room() == 0 {
            return Err(self.error("is full"));
        }
        match frame.command() {
            Command::Shutdown => roster.leaving.store(true, Ordering::Release),
            Command::Recover { epoch } => roster.begin(*epoch),
            _ => {}
        }
        pass(roster, frame)
    }

    fn urgent(&self, signal: Signal) -> Result<()> {
        let crew = self.crew()?;
        match signal {
            Signal::Abort { epoch, cause } => crew.urge(&Message::Abort { epoch, cause }),
            Signal::Shutdown => crew.let_go(),
            other => Err(self.error(&format!("can't pass on {other:?}"))),
        }
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        self.started.get().map(|crew| crew.roster.progress(worker)).unwrap_or_default()
    }

    /// Blocks the calling thread rather than the task: no timer here could wake a task. Nodes that have not left in time are
    /// told to end at once.
    async fn close(&self, limit: Duration) -> Result<()> {
        let Some(crew) = self.started.get() else { return Ok(()) };
        let stuck = crew.dismiss(limit)?;
        match stuck.is_empty() {
            true => Ok(()),
            false => Err(Error::Stuck { workers: stuck.join(", "), after: limit }),
        }
    }
}

/// Passes a frame on, for which there is room.
fn pass(roster: &Roster, frame: &Frame) -> Result<()> {
    match frame.command() {
        Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } => {
            let node = roster.place(*worker).map(|(node, _)| node);
            let rest = (frame.bytes()?.len() > SMALL).then(|| frame.without_command());
            roster.post_now(frame, rest.as_ref(), |index| node == Some(index))
        }
        Command::SyncAll | Command::Shutdown | Command::Recover { .. } => roster.post_now(frame, None, |_| true),
        _ => roster.post_soon(frame),
    }
}

impl fmt::Debug for NodeLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLane").field("workers", &self.workers).finish_non_exhaustive()
    }
}
