//! The controller's end of a lane to nodes: its options and its start.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use disco_core::channel::SubsetPart;
use disco_core::link::Shared;
use disco_core::wire::Assignment;
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Inbox, Result, WorkerId, WorkerRange, World};
use disco_engine::clock::MachineClock;
use disco_engine::controller::{Controller, MAX_PENDING, Missing, NodeTerms, Terms, Tree, Vacancy};
use disco_engine::credit::MAX_UNREAD_BYTES;
use disco_engine::handshake::Secret;
use disco_engine::token::Token;

use super::announce::{Announce, Announcement};
use super::hosting::{Hosting, Use};
use super::printer::{Sink, to_terminal};
use super::transport::Tcp;
use crate::remote::lane::{Peers, RemoteLane, Running};
use crate::remote::nodes::{NodeInvitation, loopback};
use crate::remote::reactor::{Lane, Reactor, Served, Waker};

/// Options of a [`NodeLane`].
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of nodes, which share the lane's workers.
    pub nodes: usize,
    /// The number of the first of these nodes in the session.
    first_node: u32,
    /// Address to listen on, as `HOST:PORT`; port 0 takes any free port.
    pub listen: String,
    /// The secret that nodes and controller prove to each other.
    pub token: Token,
    /// Whether connections to nodes are encrypted; `None` reads `DISCO_ENCRYPT`, which encrypts if it is unset. Nodes
    /// with another setting are refused.
    pub encrypts: Option<bool>,
    /// Gets the address to which nodes connect.
    pub announce: Announce,
    /// Names of the nodes in messages. Without a name, a node is called by its number and, once it has joined, the name
    /// of its host.
    pub names: Vec<String>,
    /// Prefixes of the lines that the workers of the nodes print. Without a prefix, a line has the number of the node.
    pub prefixes: Vec<String>,
    /// Whether workers are processes of their nodes, not threads.
    pub processes: bool,
    /// Largest number of nodes that one end sends commands to, at least 1. Above it, nodes relay for others, in a tree.
    /// Default: [`FAN_OUT`](Self::FAN_OUT).
    pub fan_out: usize,
    /// Configuration of the workers.
    pub config: WorkerConfig,
    /// Timeout for nodes to join and start their workers.
    pub start: Duration,
    /// Heartbeat interval of each end.
    pub heartbeat: Duration,
    /// An end that sends nothing for this long is lost.
    pub silence: Duration,
    /// Maximum number of connections that have not joined yet, each for at most 5 s; another one replaces the oldest. At
    /// least 1. Each takes a descriptor.
    pub max_pending: usize,
    /// Maximum number of bytes that wait in the controller for one node, besides large tensors, which are read from
    /// the program's own memory; a node above it is lost, because it does not read. At least 64 MiB, which commands in
    /// flight may have, and [`WorkerConfig::value_limit`]. `None`: twice 256 MiB and the value limit, 64 MiB, and at
    /// least 1 GiB.
    pub max_unsent: Option<usize>,
    /// Whether the lane listens until it is closed, and answers clients with the token that ask for the
    /// [status](crate::remote::nodes::status). Then nodes may also stand by there ([`JoinOptions::is_spare`]), and nodes that come
    /// late take the places of lost ones. Otherwise, the lane stops listening once all nodes have joined.
    ///
    /// [`JoinOptions::is_spare`]: crate::remote::nodes::JoinOptions::is_spare
    pub answers_status: bool,
    /// Gets the nodes with the token that are refused, with the reasons, to be shown to the user.
    pub report: fn(&str),
    /// The nodes join after the start of the session.
    is_later: bool,
    /// The lane at whose address nodes stand by, and come late.
    entrance: Arc<OnceLock<Weak<Lane>>>,
    /// What is known of these nodes as hosts of other lanes' workers.
    hosting: Hosting,
    /// The lane to the node that starts the workers, which is connected already.
    host: Option<Arc<Host>>,
}

/// The lane to the node that starts the workers of a lane.
#[derive(Debug)]
struct Host {
    options: Options,
    /// The workers of that lane.
    workers: WorkerRange,
    _use: Use,
}

/// The lane to workers of other nodes. Its start listens, announces the address, and waits until all nodes have joined
/// and started their workers. Dropping the lane tells the nodes to stop their workers, and returns at once.
pub type NodeLane = RemoteLane<Options>;

impl Options {
    /// The default of [`Self::fan_out`].
    pub const FAN_OUT: usize = 32;

    /// Defaults: loopback address, workers as processes, start timeout 30 s, heartbeat 1 s, silence 5 s, 256
    /// pending connections or one for each node, answers questions for the status.
    pub fn new(nodes: usize, token: Token, config: WorkerConfig) -> Self {
        Self {
            nodes,
            first_node: 1,
            listen: format!("{}:0", loopback()),
            token,
            encrypts: None,
            announce: Announce::default(),
            names: Vec::new(),
            prefixes: Vec::new(),
            processes: true,
            fan_out: Self::FAN_OUT,
            config,
            start: Duration::from_secs(30),
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            max_pending: MAX_PENDING.max(nodes),
            max_unsent: None,
            answers_status: true,
            report: |_| {},
            is_later: false,
            entrance: Arc::default(),
            hosting: Hosting::default(),
            host: None,
        }
    }
}

impl Options {
    /// # Errors
    /// A limit is too small; the error names it and the least value.
    fn check_limits(&self) -> Result<()> {
        if self.max_pending == 0 {
            return Err(Error::invalid("max_pending is 0: with less than 1 pending connection, no node can join"));
        }
        if self.fan_out == 0 {
            return Err(Error::invalid("the fan-out of the tree of nodes is 0; it must be at least 1"));
        }
        let least = self.config.value_limit.saturating_add(MAX_UNREAD_BYTES as usize);
        match self.max_unsent {
            Some(bytes) if bytes < least => Err(Error::invalid(format!(
                "max_unsent is {bytes} bytes: it must be at least {least}, the value limit of {} and the {MAX_UNREAD_BYTES} \
                 bytes that commands in flight may have, or a slow node would be lost",
                self.config.value_limit
            ))),
            _ => Ok(()),
        }
    }
}

impl Options {
    /// Options for more nodes, which have the workers at these places.
    ///
    /// # Errors
    /// The nodes' launcher starts nodes only once.
    pub(crate) fn more(&self, workers: WorkerRange, world: World) -> Result<Self> {
        if !self.announce.is_repeatable() {
            return Err(Error::state("resize: the launcher of the nodes starts nodes only once; start a new session"));
        }
        let per_node = world.per_node();
        let (nodes, first_node) = (workers.len() / per_node, (workers.first().index() / per_node) as u32);
        Ok(Self { config: self.config.in_world(world), ..self.later(nodes, first_node) })
    }

    /// The host of the address to listen at.
    #[allow(clippy::disallowed_methods, reason = "an address, HOST:PORT")]
    fn host(&self) -> &str {
        self.listen.rsplit_once(':').map_or(&self.listen, |(host, _)| host)
    }

    /// Options for nodes that join after the start of the session, numbered from `first_node` on. They connect to another
    /// port: other lanes may still listen at theirs.
    fn later(&self, nodes: usize, first_node: u32) -> Self {
        let host = self.host();
        let listen = format!("{host}:0");
        // Nodes that come later find the entrance.
        let answers_status = self.answers_status && self.entrance().is_none();
        let (hosting, host) = Default::default();
        Self { nodes, first_node, listen, answers_status, is_later: true, hosting, host, ..self.clone() }
    }

    /// Options for new workers in the places of `part`, which their node starts: it is one of this lane to `workers`, and
    /// connected.
    fn hosted(&self, workers: WorkerRange, part: WorkerRange) -> Self {
        let host = Some(Arc::new(Host { options: self.clone(), workers, _use: self.hosting.begin_use() }));
        let hosting = self.hosting.clone();
        let announce = Announce::new(move |announcement| hosting.ask(part, announcement.addresses()));
        let later = self.later(1, self.number(workers, part.first()));
        Self { announce, host, answers_status: false, ..later }
    }

    /// The number of the node of a worker of this lane to `workers`.
    fn number(&self, workers: WorkerRange, worker: WorkerId) -> u32 {
        self.first_node + (workers.position(worker).unwrap_or(0) / self.per_node(workers)) as u32
    }

    /// Number of workers of each node of a lane to `workers`.
    fn per_node(&self, workers: WorkerRange) -> usize {
        (workers.len() / self.nodes.max(1)).max(1)
    }
}

impl Options {
    /// Sends nodes that stand by to a new lane, which listens at the address of `announcement`, and later those that come to
    /// the session's address. Returns the number of nodes sent at once.
    fn call_spares(&self, announcement: &Announcement, missing: Missing) -> usize {
        let Some(entrance) = self.entrance().filter(|_| self.is_later && self.host.is_none()) else { return 0 };
        let Announcement { first_node, nodes, .. } = *announcement;
        let vacancy = Vacancy::new(first_node..first_node + nodes as u32, announcement.addresses(), missing);
        entrance.with(|engine, now| engine.vacate(vacancy, now))
    }

    /// Checks that `part`, some of all `workers`, are whole nodes that can start again, or for which so many stand by.
    fn check_nodes(&self, workers: WorkerRange, part: WorkerRange, standing: usize) -> Result<(), String> {
        let per_node = self.per_node(workers);
        if !self.announce.is_repeatable() && standing < part.len() / per_node {
            return Err("their launcher starts nodes only once; a new session can have other workers".to_owned());
        }
        match workers.position(part.first()) {
            Some(place) if place.is_multiple_of(per_node) && part.len().is_multiple_of(per_node) => Ok(()),
            _ => Err(format!(
                "only whole nodes can, which have {per_node} workers here; end the process of the node, and ask again"
            )),
        }
    }

    /// Whether nodes stand by at the address of this lane, and come late.
    fn takes_spares(&self) -> bool {
        self.answers_status && !self.is_later
    }

    fn entrance(&self) -> Option<Arc<Lane>> {
        self.entrance.get()?.upgrade()
    }
}

impl Peers for Options {
    const NAME: &'static str = "nodes";
    const SPAN_MACHINES: bool = true;

    fn value_limit(&self) -> usize {
        self.config.value_limit
    }

    fn check_part(&self, workers: WorkerRange, part: WorkerRange) -> Result<(), String> {
        self.check_nodes(workers, part, 0)
    }

    /// Nodes that are lost have successors. A node that is connected starts new processes, in the places of neighbours by one
    /// lane.
    fn of_part(&self, workers: WorkerRange, part: WorkerRange) -> Result<Vec<(WorkerRange, Self)>> {
        if let Some(host) = &self.host {
            return host.options.of_part(host.workers, part);
        }
        let per_node = self.per_node(workers);
        let standing = self.entrance().map_or(0, |entrance| entrance.read(|engine| engine.count_spares()));
        let successors = |part: WorkerRange| {
            self.check_nodes(workers, part, standing).map_err(Error::State)?;
            Ok((part, self.later(part.len() / per_node, self.number(workers, part.first()))))
        };
        if !self.processes {
            return successors(part).map(|one| vec![one]);
        }
        let place = |worker| workers.position(worker).unwrap_or(0) / per_node;
        let is_lost = |worker| self.hosting.has_lost(worker);
        let belong = |one, other| place(one) == place(other) || is_lost(one) && is_lost(other);
        let replace = |part: WorkerRange| {
            if !is_lost(part.first()) {
                return Ok((part, self.hosted(workers, part)));
            }
            // Other lanes may have had workers of the node.
            let (first, last) = (place(part.first()), part.iter().next_back().map_or(0, place));
            successors(workers.part(first * per_node, (last + 1 - first) * per_node))
        };
        WorkerRange::cover(part, belong).into_iter().map(replace).collect()
    }

    fn check_start(&self, workers: WorkerRange) -> Result<()> {
        self.host.as_ref().map_or(Ok(()), |host| host.options.hosting.check(workers))
    }

    /// The lane to the node that has started the workers lists the node.
    fn has_nodes(&self) -> bool {
        self.host.is_none()
    }

    /// Each worker joins as a node of its own: worker `i` as node `i + 1`, since node 0 is the controller's.
    fn of_subset(&self, part: &SubsetPart) -> Result<Self> {
        let (workers, invite, token) = (part.workers, part.invite.clone(), Token::random()?);
        let node_of = |worker: WorkerId| worker.index() as u32 + 1;
        let encrypts = Secret::new(token.clone(), self.encrypts)?.encrypts;
        let host = self.host();
        let announce = {
            let token = token.clone();
            Announce::new(move |announcement| {
                let addresses = announcement.addresses().join(",");
                workers.iter().try_for_each(|worker| {
                    let (node, token, addresses) = (node_of(worker), token.clone(), addresses.clone());
                    let invitation = NodeInvitation { node, encrypts, token, addresses };
                    invite(worker, invitation.text().into_bytes())
                })
            })
        };
        Ok(Self {
            nodes: workers.len(),
            first_node: node_of(workers.first()),
            listen: format!("{host}:0"),
            token,
            encrypts: Some(encrypts),
            announce: announce.only_once(),
            names: Vec::new(),
            prefixes: Vec::new(),
            processes: false,
            config: self.config.in_subset(part.world, part.collective_deadline),
            answers_status: false,
            is_later: false,
            entrance: Arc::default(),
            hosting: Hosting::default(),
            host: None,
            ..self.clone()
        })
    }

    fn is_entrance(&self) -> bool {
        self.takes_spares() || self.hosting.is_used()
    }

    fn bring_up(&self, workers: WorkerRange, shared: Arc<Shared>, inbox: Arc<dyn Inbox>) -> Result<Running> {
        let Self { nodes, listen, announce, names, processes, config, start, heartbeat, silence, .. } = self;
        let count = workers.len();
        if count == 0 || *nodes == 0 || !count.is_multiple_of(*nodes) {
            return Err(Error::invalid(format!("{nodes} nodes can't share {count} workers")));
        }
        self.check_limits()?;
        let listener = super::listen::listen(listen)?;
        let address = listener.local_addr().map_err(refused)?;
        let missing = Missing::default();
        let terms = NodeTerms {
            secret: Secret::new(self.token.clone(), self.encrypts)?,
            world: config.world,
            tree: Tree::Any { first: self.first_node, nodes: *nodes, fan_out: self.fan_out },
            names: names.clone(),
            per_node: count / nodes,
            silence: *silence,
            max_pending: self.max_pending,
            stays_open: self.answers_status,
            has_standby: self.takes_spares(),
            missing: missing.clone(),
            report: self.report,
        };
        let assignment = Assignment {
            node: 0,
            workers,
            behind: Arc::default(),
            processes: *processes,
            config: *config,
            heartbeat: *heartbeat,
            silence: *silence,
            start: *start,
        };
        let (terms, sink) = (Terms::Nodes(terms, assignment), to_terminal(self.prefixes.clone()));
        if let Some(host) = &self.host {
            host.options.hosting.add(workers, &inbox)?;
        }
        let lane = (self.hosting.clone(), self.max_unsent);
        let served = serve(listener, terms, *nodes, (shared, inbox.clone()), sink, lane)?;
        self.hosting.run(served.lane());
        if self.takes_spares() {
            // Fails only if a lane is started twice.
            _ = self.entrance.set(Arc::downgrade(served.lane()));
        }
        let mut announcement =
            Announcement { address, first_node: self.first_node, nodes: *nodes, per_node: count / nodes };
        announcement.nodes -= self.call_spares(&announcement, missing);
        let processes = match announcement.nodes {
            0 => Vec::new(),
            _ => announce.publish(&announcement).map_err(|error| served.fail(error))?,
        };
        served.adopt(processes.into_iter().map(|process| process.0).collect());
        Ok(Running::new(served, None, inbox))
    }
}

/// Serves nodes that connect to `listener`, of which this process has started `processes`. For each, at most `max_unsent`
/// bytes wait. `hosting` is told of lost nodes.
///
/// # Errors
/// The system has no descriptors or threads left.
pub(in crate::remote::nodes) fn serve(
    listener: TcpListener,
    terms: Terms,
    processes: usize,
    (shared, inbox): (Arc<Shared>, Arc<dyn Inbox>),
    sink: Sink,
    (hosting, max_unsent): (Hosting, Option<usize>),
) -> Result<Served> {
    let waker = Arc::new(Waker::new().map_err(refused)?);
    let transport = Tcp::new(listener, waker.clone(), sink, hosting).map_err(refused)?;
    let controller = Controller::new(terms, Instant::now()).with_clock(MachineClock::of_records());
    let lane = Arc::new(Lane::new(controller, waker, None));
    let reactor = Reactor::new(lane, inbox, shared, processes, transport).limit_unsent(max_unsent);
    Served::start("disco-nodes", reactor).map_err(refused)
}

fn refused(error: io::Error) -> Error {
    Error::system("the system refuses a lane to nodes", error)
}
