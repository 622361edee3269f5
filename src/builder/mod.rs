//! The builder of sessions.

mod recording;
#[cfg_attr(not(target_os = "linux"), path = "unsupported.rs")]
pub(crate) mod remote;

use std::time::Duration;

use disco_channel::session;
use disco_core::env::Variable;
use disco_core::session::{Deadlines, LaneSession, ReplacementPolicy, SessionConfig};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Result, World};

use crate::SessionKind;
use crate::timeline::Recorder;

/// Configures and starts a session. A deadline of `Duration::MAX` means no limit.
///
/// ```
/// use disco::Builder;
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
    value_limit: usize,
    collective_deadline: Option<Duration>,
    connect_deadline: Option<Duration>,
    start_deadline: Option<Duration>,
    heartbeat: Option<Duration>,
    silence: Duration,
    deadlines: Deadlines,
    replacement: ReplacementPolicy,
    recorder: Option<Recorder>,
    #[cfg(feature = "trace")]
    trace: Option<std::path::PathBuf>,
    remote: remote::Options,
}

// A program may start a session on one thread and use it on others.
const _: fn() = || {
    fn is_send<T: Send>() {}
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send::<Builder>();
    is_send_and_sync::<LaneSession>();
};

impl Builder {
    /// A session of `workers` threads of this process.
    pub fn threads(workers: usize) -> Self {
        Self::new(SessionKind::Threads, workers)
    }

    /// A session of `workers` workers: worker 0 is a thread of this process, unless
    /// [`Builder::apart`] makes it a process, too; the others are processes of this machine. This program is executed
    /// again for each of them, so it has to call [`init`](crate::init). If an MPI launcher has started ranks, on this
    /// machine or several, the ranks are the workers.
    pub fn processes(workers: usize) -> Self {
        Self::new(SessionKind::Processes, workers)
    }

    /// A session of `workers` workers of a kind that the program learns when it runs; other programs name the kind. A session
    /// of nodes has two nodes unless `NodeOptions::count` is set.
    pub fn new(kind: SessionKind, workers: usize) -> Self {
        Self {
            kind,
            workers,
            groups: 1,
            check: None,
            value_limit: WorkerConfig::VALUE_LIMIT,
            collective_deadline: None,
            connect_deadline: None,
            start_deadline: None,
            heartbeat: None,
            silence: Duration::from_secs(5),
            deadlines: Deadlines::default(),
            replacement: ReplacementPolicy::default(),
            recorder: None,
            #[cfg(feature = "trace")]
            trace: None,
            remote: remote::Options::default(),
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

    /// Sets all deadlines of the controller's waits.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
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
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use disco::{Builder, ReplacementPolicy};
    ///
    /// let policy = ReplacementPolicy::at_once().at_most(3, Duration::from_secs(3600));
    /// let builder = Builder::processes(4).replacement(policy);
    /// ```
    pub fn replacement(mut self, policy: ReplacementPolicy) -> Self {
        self.replacement = policy;
        self
    }

    /// Starts the workers, and blocks the calling thread until they have started.
    ///
    /// Processes and nodes may take [`start_deadline`](Self::start_deadline), not counting the initialisation of an MPI
    /// library. Builders and sessions are [`Send`]: an async program starts a session on a thread for blocking work,
    /// such as `tokio::task::spawn_blocking` (`examples/tokio`).
    ///
    /// # Errors
    /// - There are no workers, or they can't be split into groups or nodes of equal size.
    /// - The heartbeat interval is 0 or more than half of the silence limit.
    /// - A thread or a process can't be started. A process ends, or does not connect in time; the error names the worker.
    /// - `NodeOptions::max_pending` or `fan_out` is 0, or `NodeOptions::max_unsent` is below its least value.
    /// - A node does not join in time or runs another program; the address is in use; nodes that are not started here have no token.
    /// - A log file can't be written, or log files are set and all workers are threads.
    /// - The session has nodes, but this program is built without the feature `nodes`.
    /// - The session needs processes, but this program has not called [`init`](crate::init).
    pub fn start(self) -> Result<LaneSession> {
        let mut this = remote::with_launcher(self)?;
        let world = this.split_into_nodes(World::new(this.workers, this.groups)?)?;
        this.check_heartbeat()?;
        this.check_remote()?;
        let mut config = this.worker_config(world)?;
        let recorder = this.recorder()?;
        config.recorder = recorder.as_ref().map_or(config.recorder, |recorder| recorder.config);
        let settings = SessionConfig::from(this.deadlines).with_replacement(this.replacement);
        let settings = match recorder {
            Some(recorder) => recorder.set(settings),
            None => settings,
        };
        let session = match this.kind {
            SessionKind::Threads => session::threads(config, settings),
            SessionKind::Processes | SessionKind::Nodes => this.start_remote(config, settings),
        }?;
        remote::attach(&session)?;
        Ok(session)
    }

    fn check_heartbeat(&self) -> Result<()> {
        let (heartbeat, silence) = (self.heartbeat_interval(), self.silence);
        if self.kind == SessionKind::Threads || (!heartbeat.is_zero() && heartbeat <= silence / 2) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the heartbeat interval {heartbeat:?} must be above 0 and at most half of the silence limit {silence:?}"
        )))
    }

    fn worker_config(&self, world: World) -> Result<WorkerConfig> {
        let mut config = WorkerConfig::new(world);
        config.check = match self.check {
            Some(check) => check,
            None => Variable::read("DISCO_CHECK").flag()?.unwrap_or(false),
        };
        config.value_limit = self.value_limit;
        config.collective_deadline = self.collective_deadline.unwrap_or(config.collective_deadline);
        config.connect_deadline = self.connect_deadline.unwrap_or(config.connect_deadline);
        Ok(config)
    }

    fn start_limit(&self) -> Duration {
        self.start_deadline.unwrap_or(Duration::from_secs(30))
    }

    fn heartbeat_interval(&self) -> Duration {
        self.heartbeat.unwrap_or(self.silence / 5)
    }
}
