//! Sessions from parts.

#[cfg(target_os = "linux")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[cfg(target_os = "linux")]
use disco_channel::processes::{self, Invitation, Launch, ProcessLane};
use disco_channel::threads::ThreadLane;
use disco_core::link::Shared;
use disco_core::session::{Deadlines, LaneSession};
#[cfg(target_os = "linux")]
use disco_core::shared_memory::Arena;
use disco_core::worker::{self, WorkerConfig};
use disco_core::{Channel, Result, WorkerId, World};

use crate::SessionKind;

/// What a session is made of.
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
pub struct Builder {
    kind: SessionKind,
    workers: usize,
    groups: usize,
    check: bool,
    #[cfg(target_os = "linux")]
    launch: Option<Launch>,
    collective_deadline: Option<Duration>,
    connect_deadline: Option<Duration>,
    start_deadline: Duration,
    silence: Duration,
    deadlines: Deadlines,
}

impl Builder {
    /// A session of `workers` threads of this process.
    pub fn threads(workers: usize) -> Self {
        Self::new(SessionKind::Threads, workers)
    }

    /// A session of `workers` workers: worker 0 is a thread of this process, the others are processes of this machine. The
    /// program is started once more for each and has to call [`init`](crate::init).
    pub fn processes(workers: usize) -> Self {
        Self::new(SessionKind::Processes, workers)
    }

    /// A session of `workers` workers of a kind.
    pub fn new(kind: SessionKind, workers: usize) -> Self {
        Self {
            kind,
            workers,
            groups: 1,
            check: std::env::var("DISCO_CHECK").is_ok_and(|value| value == "1"),
            #[cfg(target_os = "linux")]
            launch: None,
            collective_deadline: None,
            connect_deadline: None,
            start_deadline: Duration::from_secs(30),
            silence: Duration::from_secs(5),
            deadlines: Deadlines::default(),
        }
    }

    /// Splits the workers in equal groups. Default: 1.
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Whether ranks compare what they call before each collective. Default: `DISCO_CHECK=1`.
    pub fn check(mut self, check: bool) -> Self {
        self.check = check;
        self
    }

    /// How long one collective may take, from entry. Default: 5 minutes.
    pub fn collective_deadline(mut self, deadline: Duration) -> Self {
        self.collective_deadline = Some(deadline);
        self
    }

    /// How long `init_ccl` waits on a worker for the others to come. Default: 30 s.
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = Some(deadline);
        self
    }

    /// How long one call of a worker function may take while somebody waits for a reply. Default: no limit.
    pub fn call_deadline(mut self, deadline: Duration) -> Self {
        self.deadlines.call = Some(deadline);
        self
    }

    /// All limits of the session's own waits.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Starts another program for workers that are processes. It calls [`init`](crate::init) too, and has the same worker
    /// functions. Default: this program, with its arguments.
    #[cfg(target_os = "linux")]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.launch = Some(Launch::program(program, std::env::args_os().skip(1)));
        self
    }

    /// Starts no processes: somebody else does or has, as `mpiexec` does, on this machine and as this user. `invite` is given
    /// the [text](Invitation::text) for each worker from 1 on, in turn, and passes it on to that worker, which [serves] with
    /// it, or [is started](crate::init) with it in `DISCO_WORKER`. They print for themselves.
    ///
    /// [serves]: crate::serve
    #[cfg(target_os = "linux")]
    pub fn invite(mut self, invite: impl Fn(&Invitation) -> Result<()> + Send + Sync + 'static) -> Self {
        self.launch = Some(Launch::elsewhere(invite));
        self
    }

    /// How long processes may take to start. Default: 30 s.
    pub fn start_deadline(mut self, deadline: Duration) -> Self {
        self.start_deadline = deadline;
        self
    }

    /// How long a process may be silent before it counts as lost: one that is stopped, or that has no processor. A worker
    /// inside a function is not silent. Default: 5 s.
    pub fn silence(mut self, limit: Duration) -> Self {
        self.silence = limit;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// No workers, groups that do not divide them; threads that can't be made; processes that can't be started, that end
    /// or that do not connect in time: which worker, and why. This program does not call [`init`](crate::init).
    pub fn start(self) -> Result<LaneSession> {
        let world = World::new(self.workers, self.groups)?;
        let mut config = WorkerConfig::new(world);
        config.check = self.check;
        config.collective_deadline = self.collective_deadline.unwrap_or(config.collective_deadline);
        config.connect_deadline = self.connect_deadline.unwrap_or(config.connect_deadline);
        // Behind the collective's own.
        let mut deadlines = self.deadlines;
        deadlines.collective = deadlines.collective.max(config.collective_deadline + deadlines.reply);
        let workers = world.size() as u32;
        let lanes = match self.kind {
            SessionKind::Threads => vec![threads(config, workers, Arc::default())],
            SessionKind::Processes => self.lanes_to_processes(config, workers)?,
        };
        LaneSession::start(world, lanes, deadlines)
    }

    /// Worker 0 stays in this process.
    #[cfg(target_os = "linux")]
    fn lanes_to_processes(&self, config: WorkerConfig, workers: u32) -> Result<Vec<Arc<dyn Channel>>> {
        let mut options = processes::Options::new(config);
        (options.start, options.silence) = (self.start_deadline, self.silence);
        #[cfg(feature = "mpi")]
        let ranks = crate::ranks::launch(self.workers)?;
        #[cfg(not(feature = "mpi"))]
        let ranks = None;
        match self.launch.clone().or(ranks) {
            Some(launch) => options.launch = launch,
            None => crate::init::check()?,
        }
        let arena =
            Arena::new().inspect_err(|error| tracing::warn!(%error, "no shared memory for tensors of worker 0"));
        let shared = Arc::new(arena.map_or_else(|_| Shared::default(), Shared::with_arena));
        let mut lanes = vec![threads(config, 1, shared.clone())];
        if workers > 1 {
            let others = WorkerId::new(1)..WorkerId::new(workers);
            lanes.push(Arc::new(ProcessLane::new(others, shared, options)));
        }
        Ok(lanes)
    }

    #[cfg(not(target_os = "linux"))]
    fn lanes_to_processes(&self, _: WorkerConfig, _: u32) -> Result<Vec<Arc<dyn Channel>>> {
        Err(disco_core::Error::invalid("sessions of processes are here on Linux only"))
    }
}

/// A lane to workers 0 up to `workers`, as threads.
fn threads(config: WorkerConfig, workers: u32, shared: Arc<Shared>) -> Arc<dyn Channel> {
    let run = move |worker, endpoint| worker::run(worker, config, endpoint);
    Arc::new(ThreadLane::new(WorkerId::new(0)..WorkerId::new(workers), shared, run))
}
