//! The builder of sessions.

#[cfg(target_os = "linux")]
mod launched;
mod recording;
#[cfg(target_os = "linux")]
mod start;

#[cfg(target_os = "linux")]
use std::path::PathBuf;
use std::time::Duration;

#[cfg(target_os = "linux")]
use disco_channel::nodes::{Announce, Announcement, Token};
#[cfg(target_os = "linux")]
use disco_channel::processes::{Invitation, Launch};
#[cfg(target_os = "linux")]
use disco_channel::programs;
use disco_channel::session;
use disco_core::env::Variable;
use disco_core::session::{Deadlines, LaneSession, ReplacementPolicy};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Result, World};

use crate::SessionKind;
use crate::timeline::Recorder;

/// Configures and starts a session. A deadline of `Duration::MAX` means no limit.
///
/// ```
/// use disco::{Builder, Session};
///
/// # fn main() -> disco::Result<()> {
/// let session = Builder::threads(4).groups(2).start()?;
/// assert_eq!(session.world().group_size(), 2);
/// disco::block_on(session.shutdown())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct Builder {
    kind: SessionKind,
    workers: usize,
    groups: usize,
    check: Option<bool>,
    #[cfg(target_os = "linux")]
    launch: Option<Launch>,
    #[cfg(target_os = "linux")]
    nodes: Nodes,
    value_limit: usize,
    #[cfg(target_os = "linux")]
    log_dir: Option<PathBuf>,
    collective_deadline: Option<Duration>,
    connect_deadline: Option<Duration>,
    start_deadline: Option<Duration>,
    heartbeat: Option<Duration>,
    silence: Duration,
    deadlines: Deadlines,
    replacement: ReplacementPolicy,
    #[cfg(target_os = "linux")]
    spares: usize,
    #[cfg(target_os = "linux")]
    apart: bool,
    recorder: Option<Recorder>,
    #[cfg(feature = "trace")]
    trace: Option<std::path::PathBuf>,
    #[cfg(all(feature = "trace", target_os = "linux"))]
    dump: Option<PathBuf>,
    /// `None` reads `DISCO_STATUS`.
    #[cfg(target_os = "linux")]
    answers_status: Option<bool>,
}

// A program may start a session on one thread and use it on others.
const _: fn() = || {
    fn is_send<T: Send>() {}
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send::<Builder>();
    is_send_and_sync::<LaneSession>();
};

/// The nodes of a session, and how they join.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug)]
struct Nodes {
    count: usize,
    workers: SessionKind,
    /// Whether each worker joins as its own node, even if several are on one machine.
    one_worker_each: bool,
    names: Vec<String>,
    listen: Option<String>,
    token: Option<Token>,
    /// Whether connections are encrypted; `None` reads `DISCO_ENCRYPT`.
    encrypts: Option<bool>,
    announce: Option<Announce>,
    max_pending: Option<usize>,
    max_unsent: Option<usize>,
    /// `None` reads `DISCO_FAN_OUT`.
    fan_out: Option<usize>,
}

#[cfg(target_os = "linux")]
impl Default for Nodes {
    fn default() -> Self {
        Self {
            count: 2,
            workers: SessionKind::Processes,
            one_worker_each: false,
            names: Vec::new(),
            listen: None,
            token: None,
            encrypts: None,
            announce: None,
            max_pending: None,
            max_unsent: None,
            fan_out: None,
        }
    }
}

impl Builder {
    /// A session of `workers` threads of this process.
    pub fn threads(workers: usize) -> Self {
        Self::new(SessionKind::Threads, workers)
    }

    /// A session of `workers` workers: worker 0 is a thread of this process, unless the session is
    /// [apart](Self::apart), the others are processes of this machine. This program is executed again for each of them, so it has to call [`init`](crate::init). If an MPI launcher has
    /// started ranks, on this machine or several, the ranks are the workers.
    pub fn processes(workers: usize) -> Self {
        Self::new(SessionKind::Processes, workers)
    }

    /// A session of `nodes` machines with `per_node` workers each. This machine is node 0, and worker 0 is a thread of
    /// this process, unless the session is [apart](Self::apart).
    ///
    /// With [`announce`](Self::announce) or [`listen`](Self::listen), the session waits for other machines to
    /// [join](crate::join). Without, all nodes are started on this machine, by executing this program again, for trials
    /// and tests. If an MPI launcher has started ranks, the ranks are the workers and join automatically.
    #[cfg(target_os = "linux")]
    pub fn nodes(nodes: usize, per_node: usize) -> Self {
        // If the product is too large, `start` rejects the number of workers.
        Self::new(SessionKind::Nodes, nodes.saturating_mul(per_node)).node_count(nodes)
    }

    /// A session of `workers` workers of the given kind. A session of nodes has two nodes unless
    /// [`node_count`](Self::node_count) is called.
    pub fn new(kind: SessionKind, workers: usize) -> Self {
        Self {
            kind,
            workers,
            groups: 1,
            check: None,
            #[cfg(target_os = "linux")]
            launch: None,
            #[cfg(target_os = "linux")]
            nodes: Nodes::default(),
            value_limit: WorkerConfig::VALUE_LIMIT,
            #[cfg(target_os = "linux")]
            log_dir: None,
            collective_deadline: None,
            connect_deadline: None,
            start_deadline: None,
            heartbeat: None,
            silence: Duration::from_secs(5),
            deadlines: Deadlines::default(),
            replacement: ReplacementPolicy::default(),
            #[cfg(target_os = "linux")]
            spares: 0,
            #[cfg(target_os = "linux")]
            apart: false,
            recorder: None,
            #[cfg(all(feature = "trace", target_os = "linux"))]
            dump: None,
            #[cfg(feature = "trace")]
            trace: None,
            #[cfg(target_os = "linux")]
            answers_status: None,
        }
    }

    /// Splits the workers into `groups` equal groups. Default: 1.
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Whether ranks compare the signatures of their calls before each collective, so that a mismatch is an error.
    /// Default: true if `DISCO_CHECK=1`, else false.
    pub fn check(mut self, check: bool) -> Self {
        self.check = Some(check);
        self
    }

    /// Maximum size in bytes of the arguments of one call, of the value of one `set` and of the value of one `get`, to
    /// and from workers in other processes. It bounds the memory that each side allocates for the other. Values for threads of
    /// this process have no limit. Default: 1 GiB.
    ///
    /// Large tensors are sent to nodes ahead of their command. The limit also bounds the total size of such tensors in
    /// flight: those of later commands wait. The caller's tensors are borrowed for reading until the call returns. A
    /// transfer may take longer than [`Deadlines::reply`], because bytes that move count as progress. On a node the
    /// large tensors of one call share one allocation, which lives as long as one of them does.
    pub fn value_limit(mut self, bytes: usize) -> Self {
        self.value_limit = bytes;
        self
    }

    /// Time that one collective may take on a rank, from entry. Default: 5 minutes.
    pub fn collective_deadline(mut self, deadline: Duration) -> Self {
        self.collective_deadline = Some(deadline);
        self
    }

    /// Time that `init_ccl` on a worker waits for the other workers. Default: 30 s.
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = Some(deadline);
        self
    }

    /// Time that one call of a worker function may take while the controller waits for a reply. Functions of the data
    /// plane (`disco.init_ccl`, collectives) have their own limits. Default: no limit; every 30 s ([`Deadlines::warn`])
    /// a waiting controller logs a `tracing` warning that names the worker and the function.
    pub fn call_deadline(mut self, deadline: Duration) -> Self {
        self.deadlines.call = Some(deadline);
        self
    }

    /// Sets all deadlines of the controller's waits.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Executes another program, with this program's arguments, for workers that are processes. It must call
    /// [`init`](crate::init) and have the same worker functions. Default: this program, with its arguments.
    #[cfg(target_os = "linux")]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.launch = Some(Launch::program(program, std::env::args_os().skip(1)));
        self
    }

    /// Uses worker processes that another launcher, such as `mpiexec`, starts on this machine and as this user. For
    /// each worker that is no thread of this process, `invite` gets an invitation and passes its [text](Invitation::text) on to that worker,
    /// which [serves] with it, or is [started](crate::init) with it in `DISCO_WORKER`. The session does not forward the
    /// output of these workers.
    ///
    /// [serves]: crate::serve
    #[cfg(target_os = "linux")]
    pub fn invite(mut self, invite: impl Fn(&Invitation) -> Result<()> + Send + Sync + 'static) -> Self {
        self.launch = Some(Launch::elsewhere(invite));
        self
    }

    /// Number of nodes that share the workers equally, including this one. Default: 2.
    #[cfg(target_os = "linux")]
    pub fn node_count(mut self, nodes: usize) -> Self {
        self.nodes.count = nodes;
        self
    }

    /// Whether the workers of a node are threads of the node's process, or processes, whose output the controller
    /// prints with a prefix. Default: processes.
    #[cfg(target_os = "linux")]
    pub fn node_workers(mut self, kind: SessionKind) -> Self {
        self.nodes.workers = kind;
        self
    }

    /// Makes the session wait for nodes on this `HOST:PORT` instead of starting them; port 0 takes any free port. Needs
    /// a [token](Self::token). Default address: any free port of the loopback address.
    #[cfg(target_os = "linux")]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.nodes.listen = Some(address.into());
        self.nodes.announce.get_or_insert_default();
        self
    }

    /// Makes the session wait for nodes instead of starting them, and calls `announce` with the address once it
    /// listens. An error of `announce` fails the start. Needs a [token](Self::token).
    #[cfg(target_os = "linux")]
    pub fn announce(mut self, announce: impl Fn(&Announcement) -> Result<()> + Send + Sync + 'static) -> Self {
        self.nodes.announce = Some(Announce::new(announce));
        self
    }

    /// The secret that nodes need to join. Default: the token in `DISCO_TOKEN` or in the file `DISCO_TOKEN_FILE`; a
    /// random one if neither is set and this program starts the nodes itself.
    #[cfg(target_os = "linux")]
    pub fn token(mut self, token: Token) -> Self {
        self.nodes.token = Some(token);
        self
    }

    /// Whether connections to nodes are encrypted. Default: the value of `DISCO_ENCRYPT`, or `true`. Nodes that are
    /// started elsewhere need the same value in `DISCO_ENCRYPT` or [`JoinOptions::encrypts`](crate::JoinOptions); the
    /// controller refuses others. Without encryption, both ends still prove that they have the [token](Self::token).
    #[cfg(target_os = "linux")]
    pub fn encrypt(mut self, encrypts: bool) -> Self {
        self.nodes.encrypts = Some(encrypts);
        self
    }

    /// Maximum number of connections to the controller that have not joined as nodes yet, each for at most 5 s. Another
    /// one replaces the oldest. Default: 256, or the number of nodes if that is larger.
    #[cfg(target_os = "linux")]
    pub fn max_pending(mut self, connections: usize) -> Self {
        self.nodes.max_pending = Some(connections);
        self
    }

    /// Maximum number of bytes that wait in the controller until one node reads them; a node above it is lost. All nodes
    /// together may have as many times more. Large tensors do not count: they are read from the program's memory. At
    /// least 64 MiB and the [value limit](Self::value_limit). Default: 64 MiB and twice the sum of 256 MiB and the value
    /// limit, and at least 1 GiB.
    #[cfg(target_os = "linux")]
    pub fn max_unsent(mut self, bytes: usize) -> Self {
        self.nodes.max_unsent = Some(bytes);
        self
    }

    /// Largest number of nodes to which this program and each node send commands, at least 1. A session with more other
    /// nodes is a tree, in which nodes relay for nodes. Default: the value of `DISCO_FAN_OUT`, or 32.
    #[cfg(target_os = "linux")]
    pub fn fan_out(mut self, nodes: usize) -> Self {
        self.nodes.fan_out = Some(nodes);
        self
    }

    /// Appends the output of each worker process N to `FOLDER/N/stdout.log` and `FOLDER/N/stderr.log`, in addition to
    /// printing it. A second run of the program appends to the same files.
    ///
    /// Workers that are threads of this process or started by another launcher have no log files. Nodes on other
    /// machines write the files of their workers to [`JoinOptions::log_dir`](crate::JoinOptions).
    #[cfg(target_os = "linux")]
    pub fn log_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(folder.into());
        self
    }

    /// Time that processes and nodes may take to start. Default: 30 s.
    pub fn start_deadline(mut self, deadline: Duration) -> Self {
        self.start_deadline = Some(deadline);
        self
    }

    /// Heartbeat timeout: a process or node that sends nothing for this long counts as lost, because it is stopped,
    /// gets no CPU time, or is cut off from the network. A worker inside a function still sends heartbeats. Default: 5
    /// s, plus 1 s per 32 MiB of large values under way to it, which it decodes between two heartbeats.
    pub fn silence(mut self, limit: Duration) -> Self {
        self.silence = limit;
        self
    }

    /// Interval of the heartbeats of processes and nodes; at most half of [`silence`](Self::silence). Default: a fifth
    /// of it, 1 s.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = Some(every);
        self
    }

    /// When lost workers are replaced, and how often. Default: when [`Session::replace_lost`](crate::Session::replace_lost) is
    /// called, without a limit.
    pub fn replacement(mut self, policy: ReplacementPolicy) -> Self {
        self.replacement = policy;
        self
    }

    /// Whether other programs of this user, such as `disco status`, may ask for the [status](LaneSession::status) of the
    /// session ([`programs`](crate::programs)). A program with such sessions has one more thread, which sleeps between
    /// questions. Default: false if `DISCO_STATUS=0`, else true.
    #[cfg(target_os = "linux")]
    pub fn answer_status(mut self, answers: bool) -> Self {
        self.answers_status = Some(answers);
        self
    }

    /// Starts the workers, and blocks the calling thread until they have started.
    ///
    /// Processes and nodes may take [`start_deadline`](Self::start_deadline), not counting the initialisation of an MPI
    /// library. Builders and sessions are [`Send`]: an async program starts a session on a thread for blocking work,
    /// such as `tokio::task::spawn_blocking` (`examples/tokio.rs`).
    ///
    /// # Errors
    /// - There are no workers, or they can't be split into groups or nodes of equal size.
    /// - The heartbeat interval is 0 or more than half of the silence limit.
    /// - A thread or a process can't be started. A process ends, or does not connect in time; the error names the worker.
    /// - `max_pending` is 0, or `max_unsent` is below its least value.
    /// - A node does not join in time or runs another program; the address is in use; nodes that are not started here have no token.
    /// - A log file can't be written, or log files are set and all workers are threads.
    /// - The session needs processes, but this program has not called [`init`](crate::init).
    pub fn start(self) -> Result<LaneSession> {
        #[cfg(all(feature = "mpi", target_os = "linux"))]
        let this = self.with_ranks()?;
        #[cfg(not(all(feature = "mpi", target_os = "linux")))]
        let this = self;
        #[cfg(target_os = "linux")]
        crate::signals::get_errors_of_large_files();
        #[cfg(target_os = "linux")]
        let this = this.with_tasks()?;
        this.start_configured()
    }

    fn start_configured(mut self) -> Result<LaneSession> {
        #[cfg_attr(not(target_os = "linux"), expect(unused_mut))]
        let mut world = World::new(self.workers, self.groups)?;
        #[cfg(target_os = "linux")]
        if self.kind == SessionKind::Nodes {
            world = world.on_nodes(self.nodes.count)?;
        }
        let has_heartbeat = self.kind != SessionKind::Threads;
        let (heartbeat, silence) = (self.heartbeat_interval(), self.silence);
        if has_heartbeat && (heartbeat.is_zero() || heartbeat > silence / 2) {
            return Err(Error::invalid(format!(
                "the heartbeat interval {heartbeat:?} must be above 0 and at most half of the silence limit {silence:?}"
            )));
        }
        #[cfg(target_os = "linux")]
        {
            self.check_log_dir()?;
            self.check_spares()?;
            self.check_apart()?;
        }
        let mut config = WorkerConfig::new(world);
        config.check = match self.check {
            Some(check) => check,
            None => Variable::read("DISCO_CHECK").flag()?.unwrap_or(false),
        };
        config.value_limit = self.value_limit;
        config.collective_deadline = self.collective_deadline.unwrap_or(config.collective_deadline);
        config.connect_deadline = self.connect_deadline.unwrap_or(config.connect_deadline);
        let recorder = self.recorder()?;
        config.recorder = recorder.as_ref().map_or(config.recorder, |recorder| recorder.config);
        let session = match self.kind {
            SessionKind::Threads => session::threads(config, self.deadlines),
            #[cfg(target_os = "linux")]
            SessionKind::Processes => self.start_with_processes(config),
            #[cfg(target_os = "linux")]
            SessionKind::Nodes => self.start_with_nodes(config),
            #[cfg(not(target_os = "linux"))]
            other => Err(Error::invalid(format!("sessions of {other} need Linux"))),
        }?;
        let session = session.with_replacement(self.replacement);
        let session = match recorder {
            Some(recorder) => recorder.attach(session),
            None => session,
        };
        #[cfg(all(feature = "trace", target_os = "linux"))]
        crate::dump::attach(&session, self.dump)?;
        #[cfg(target_os = "linux")]
        if self.answers_status.unwrap_or_else(programs::is_enabled) {
            session.attach(programs::answer(session.observer()));
        }
        Ok(session)
    }
}

impl Builder {
    fn start_limit(&self) -> Duration {
        self.start_deadline.unwrap_or(Duration::from_secs(30))
    }

    fn heartbeat_interval(&self) -> Duration {
        self.heartbeat.unwrap_or(self.silence / 5)
    }
}
