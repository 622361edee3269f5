//! The lane, as a session has it.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use disco_core::channel::{Progress, Signal};
use disco_core::link::Shared;
use disco_core::wire::{Assignment, Message};
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, WorkerId};

use super::door::Door;
use super::printer::Printer;
use super::roster::Roster;
use super::service::Service;
use crate::connection::{Connection, Waker};
use crate::join;
use crate::nodes::addresses;
use crate::nodes::token::Token;

/// The largest frame that those get whom it does not concern.
const SMALL: usize = 4 << 10;
/// How long nodes may take to say who did not leave.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a [`NodeLane`] is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of nodes, which share the lane's workers.
    pub nodes: usize,
    /// Where to listen: `HOST:PORT`, port 0 for any.
    pub listen: String,
    /// What nodes have to know; without it, only nodes of this machine are taken.
    pub token: Option<Token>,
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

/// Takes where nodes are to connect, once somebody listens there.
#[derive(Clone)]
pub struct Announce(Arc<dyn Fn(&Announcement) -> Result<()> + Send + Sync>);

/// Where nodes are to connect.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The address.
    pub address: SocketAddr,
    /// How many are to come.
    pub nodes: usize,
    /// How many workers each has.
    pub per_node: usize,
    /// They have to know a token.
    pub needs_token: bool,
}

/// The lane to workers of other nodes. Dropping it lets them go: nodes stop their workers, and nobody waits for them.
pub struct NodeLane {
    workers: Range<WorkerId>,
    options: Options,
    shared: Arc<Shared>,
    started: OnceLock<Started>,
}

struct Started {
    roster: Arc<Roster>,
    service: Mutex<Option<JoinHandle<()>>>,
}

impl Options {
    /// On the loopback, without a token; workers are processes; 30 s to start, something said each second, 5 s of silence.
    pub fn new(nodes: usize, config: WorkerConfig) -> Self {
        Self {
            nodes,
            listen: "127.0.0.1:0".into(),
            token: None,
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

impl Announce {
    /// Calls this; its error ends the start.
    pub fn new(announce: impl Fn(&Announcement) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(announce))
    }
}

impl Announcement {
    /// What others may reach the address by, each as `HOST:PORT`: where it is that of all interfaces, the name of this machine and
    /// what addresses its interfaces have.
    pub fn addresses(&self) -> Vec<String> {
        let (ip, port) = (self.address.ip(), self.address.port());
        if !ip.is_unspecified() {
            return vec![self.address.to_string()];
        }
        let addresses = addresses::of_this_machine().into_iter().filter(|address| ip.is_ipv6() || address.is_ipv4());
        let addresses = addresses.map(|address: IpAddr| SocketAddr::new(address, port).to_string());
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        std::iter::once(format!("{name}:{port}")).chain(addresses).collect()
    }

    /// The command that joins on another machine, for a session of this program.
    pub fn command(&self) -> String {
        let host = match self.address.ip().is_unspecified() {
            true => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            false => self.address.ip().to_string(),
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let token = if self.needs_token { " --token-file FILE" } else { "" };
        let program: Vec<_> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let (port, per_node) = (self.address.port(), self.per_node);
        format!("disco worker --connect {host}:{port} --workers-per-node {per_node}{token} -- {}", program.join(" "))
    }
}

impl Default for Announce {
    /// Logs it.
    fn default() -> Self {
        Self::new(|announcement| {
            tracing::info!(address = %announcement.address, nodes = announcement.nodes, "waiting for nodes");
            Ok(())
        })
    }
}

impl fmt::Debug for Announce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Announce")
    }
}

impl NodeLane {
    /// Makes a lane to `workers`, an equal share of which is on each node; those share the store of `shared` with the workers
    /// of other lanes.
    pub fn new(workers: Range<WorkerId>, shared: Arc<Shared>, options: Options) -> Self {
        Self { workers, options, shared, started: OnceLock::new() }
    }

    fn started(&self) -> Result<&Started> {
        self.started.get().ok_or_else(|| self.error("was not started"))
    }

    fn error(&self, why: &str) -> Error {
        Error::invalid(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        let (start, end) = (self.workers.start.index(), self.workers.end.index());
        format!("lane to the nodes of workers {start}..{end}")
    }

    fn listen(&self) -> Result<(TcpListener, Token)> {
        let Options { listen, token, .. } = &self.options;
        let refused = |error: std::io::Error| Error::invalid(format!("can't listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).map_err(refused)?;
        match token {
            Some(token) => Ok((listener, token.clone())),
            None if listener.local_addr().map_err(refused)?.ip().is_loopback() => Ok((listener, Token::none())),
            None => Err(Error::invalid(format!(
                "listening on {listen}, which other machines reach, needs a token: set DISCO_TOKEN or DISCO_TOKEN_FILE"
            ))),
        }
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
    /// It was started before; the workers can't be shared by the nodes; the address is taken, or needs a token; nodes do not
    /// come, are another program's or can't start their workers: which, and why.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let Options { nodes, announce, names, processes, config, start, heartbeat, silence, token, .. } = &self.options;
        let count = self.workers.end.index().saturating_sub(self.workers.start.index());
        if count == 0 || *nodes == 0 || count % nodes != 0 {
            return Err(self.error(&format!("{nodes} nodes can't share {count} workers")));
        }
        if self.started.get().is_some() {
            return Err(self.error("was started before"));
        }
        let refused = |error: std::io::Error| self.error(&format!("the system refuses it: {error}"));
        let (listener, secret) = self.listen()?;
        let address = listener.local_addr().map_err(refused)?;
        let waker = Arc::new(Waker::new().map_err(refused)?);
        let roster = Arc::new(Roster::new(self.workers.clone(), *nodes, names.clone(), waker));
        let (tell, told) = mpsc::channel();
        let service = Service {
            roster: roster.clone(),
            inbox,
            shared: self.shared.clone(),
            door: Some(Door::new(listener, secret, config.world).map_err(refused)?),
            guests: Vec::new(),
            peers: Vec::new(),
            refused: VecDeque::new(),
            assignment: Assignment {
                node: 0,
                workers: self.workers.clone(),
                processes: *processes,
                config: *config,
                heartbeat: *heartbeat,
                silence: *silence,
                start: *start,
            },
            ready: Some(tell),
            printer: Some(Printer::start().map_err(refused)?),
        };
        let thread = thread::Builder::new().name("disco-nodes".into()).spawn(|| service.run()).map_err(refused)?;
        let started = Started { roster, service: Mutex::new(Some(thread)) };
        let announcement =
            Announcement { address, nodes: *nodes, per_node: count / nodes, needs_token: token.is_some() };
        let ready = (announce.0)(&announcement).and_then(|()| {
            told.recv().unwrap_or_else(|_| Err(Error::invalid("the service thread of a lane has ended")))
        });
        if let Err(error) = ready {
            started.end();
            return Err(error);
        }
        self.started.set(started).map_err(|_| self.error("was started before"))
    }

    fn crosses(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        self.started.get().map_or(0, |started| started.roster.room())
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        let roster = &self.started()?.roster;
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
        let started = self.started()?;
        match signal {
            Signal::Abort { epoch, cause } => started.urge(&Message::Abort { epoch, cause }),
            Signal::Shutdown => started.let_go(),
            other => Err(self.error(&format!("can't pass on {other:?}"))),
        }
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        self.started.get().map(|started| started.roster.progress(worker)).unwrap_or_default()
    }

    /// Blocks the calling thread rather than the task: no timer here could wake a task. Nodes that have not left in time are
    /// told to end at once.
    async fn close(&self, limit: Duration) -> Result<()> {
        let Some(started) = self.started.get() else { return Ok(()) };
        let stuck = started.dismiss(limit)?;
        match stuck.is_empty() {
            true => Ok(()),
            false => Err(Error::Stuck { workers: stuck.join(", "), after: limit }),
        }
    }
}

/// Passes a frame on, for which there is room.
fn pass(roster: &Roster, frame: &Frame) -> Result<()> {
    let encode = |frame: &Frame| {
        let bytes = frame.bytes()?;
        let packet: Arc<[u8]> = Message::Frame { seq: frame.seq(), bytes: bytes.into() }.encode()?.into();
        Ok::<_, Error>((packet, bytes.len()))
    };
    let (packet, size) = encode(frame)?;
    let whom = match frame.command() {
        Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } => {
            Whom::One(roster.place(*worker).map(|(node, _)| node))
        }
        Command::SyncAll | Command::Shutdown | Command::Recover { .. } => Whom::All,
        _ => Whom::Soon,
    };
    // The rest of a large one for those whom it does not concern.
    let rest = match whom {
        Whom::One(_) if size > SMALL => Some(encode(&frame.without_command())?),
        _ => None,
    };
    for index in 0..roster.len() {
        let is_meant = match whom {
            Whom::One(node) => node == Some(index),
            Whom::All => true,
            Whom::Soon => false,
        };
        let (packet, size) = match &rest {
            Some((packet, size)) if !is_meant => (packet, *size),
            _ => (&packet, size),
        };
        roster.seat(index).credit.use_up(size);
        let send = |connection: &Arc<Connection>| match is_meant {
            true => connection.send_last(packet.clone()),
            false => connection.send_soon(packet.clone()),
        };
        roster.send(index, send);
    }
    Ok(())
}

/// Whose reply somebody waits for.
#[derive(Clone, Copy)]
enum Whom {
    /// One node's, or one elsewhere.
    One(Option<usize>),
    All,
    /// Nobody's.
    Soon,
}

impl Started {
    fn urge(&self, message: &Message) -> Result<()> {
        let packet: Arc<[u8]> = message.encode()?.into();
        (0..self.roster.len())
            .for_each(|index| self.roster.send(index, |connection| connection.send(packet.clone(), None)));
        Ok(())
    }

    /// Tells everybody to leave, now.
    fn let_go(&self) -> Result<()> {
        self.roster.closed.store(true, Ordering::Release);
        self.roster.exits.expect();
        self.urge(&Message::Shutdown)
    }

    /// Waits for at most `limit`, then ends who is left. Returns the workers that did not leave.
    fn dismiss(&self, limit: Duration) -> Result<Vec<String>> {
        let Roster { exits, .. } = &*self.roster;
        exits.wait(Instant::now().checked_add(limit));
        self.let_go()?;
        self.urge(&Message::Bye("the session shuts down".into()))?;
        exits.wait(Instant::now().checked_add(FAREWELL));
        let mut stuck = Vec::new();
        for index in 0..self.roster.len() {
            let seat = self.roster.seat(index);
            match seat.stuck.get() {
                Some(workers) if workers.is_empty() => {}
                Some(workers) => stuck.push(workers.clone()),
                None if exits.has_left(index) => {}
                None => {
                    let Range { start, end } = self.roster.members(index);
                    let workers = (start.index()..end.index()).map(|index| WorkerId::new(index as u32));
                    let name = seat.name.get().map_or("", String::as_str);
                    stuck.extend(workers.map(|w| format!("{w} ({}; {name} does not answer)", self.roster.progress(w))));
                }
            }
        }
        self.end();
        Ok(stuck)
    }

    /// Waits for the service thread, which ends at once.
    fn end(&self) {
        self.abandon();
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(_)) = service.and_then(|thread| join::within(thread, 2 * FAREWELL)) {
            tracing::error!("the service thread panicked");
        }
    }

    fn abandon(&self) {
        self.roster.exits.expect();
        self.roster.over.store(true, Ordering::Release);
        self.roster.waker.wake();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            tracing::warn!(%error, "nodes can't be told to leave");
        }
        self.abandon();
    }
}

impl fmt::Debug for NodeLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLane").field("workers", &self.workers).finish_non_exhaustive()
    }
}
