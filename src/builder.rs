//! Sessions from parts.

#[cfg(target_os = "linux")]
use std::path::PathBuf;
use std::time::Duration;

#[cfg(all(feature = "mpi", target_os = "linux"))]
use disco_channel::nodes::everywhere;
#[cfg(target_os = "linux")]
use disco_channel::nodes::{Announce, Announcement, Options as NodeOptions, Token};
#[cfg(target_os = "linux")]
use disco_channel::processes::{self, Invitation, Launch};
use disco_channel::session;
#[cfg(target_os = "linux")]
use disco_core::WorkerRange;
use disco_core::env::Variable;
use disco_core::session::{Deadlines, LaneSession};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Result, World};

use crate::SessionKind;
#[cfg(target_os = "linux")]
use crate::log_files;

/// What a session is made of. Where a method takes a deadline, `Duration::MAX` is no limit.
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
    start_deadline: Duration,
    heartbeat: Option<Duration>,
    silence: Duration,
    deadlines: Deadlines,
}

// A program may start a session on one thread, and use it on others.
const _: fn() = || {
    fn moves<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    moves::<Builder>();
    shared::<LaneSession>();
};

/// The nodes of a session, and how they come about.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug)]
struct Nodes {
    count: usize,
    workers: SessionKind,
    /// Each worker joins by itself, also where several are on one machine.
    apart: bool,
    names: Vec<String>,
    listen: Option<String>,
    token: Option<Token>,
    announce: Option<Announce>,
}

#[cfg(target_os = "linux")]
impl Default for Nodes {
    fn default() -> Self {
        let workers = SessionKind::Processes;
        Self { count: 2, workers, apart: false, names: Vec::new(), listen: None, token: None, announce: None }
    }
}

impl Builder {
    /// A session of `workers` threads of this process.
    pub fn threads(workers: usize) -> Self {
        Self::new(SessionKind::Threads, workers)
    }

    /// A session of `workers` workers: worker 0 is a thread of this process, the others are processes of this machine. The
    /// program is started once more for each and has to call [`init`](crate::init). Where an MPI launcher has started ranks, they
    /// are the workers, of this machine and others.
    pub fn processes(workers: usize) -> Self {
        Self::new(SessionKind::Processes, workers)
    }

    /// A session of `nodes` machines with `per_node` workers each. This one is node 0, with worker 0 as a thread of this process.
    /// The others [join](crate::join); until [`announce`](Self::announce) or [`listen`](Self::listen) says otherwise, they are
    /// started here, as this program once more, to try things out. Where an MPI launcher has started ranks, they are the workers,
    /// and join by themselves.
    #[cfg(target_os = "linux")]
    pub fn nodes(nodes: usize, per_node: usize) -> Self {
        // A product that is too large is refused at the start, as any world of so many workers.
        Self::new(SessionKind::Nodes, nodes.saturating_mul(per_node)).over(nodes)
    }

    /// A session of `workers` workers of a kind; nodes are two, or as many as [`over`](Self::over) says.
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
            start_deadline: Duration::from_secs(30),
            heartbeat: None,
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
        self.check = Some(check);
        self
    }

    /// Bytes of the arguments of one call, of the value of one `set` or of the value of one `get` that may cross to or from workers
    /// in other processes. It bounds what each end allocates for the other. Threads of this process have no such limit. Default:
    /// 1 GiB. Large tensors go to nodes ahead of their command: tensors of at most so many bytes together are on their way, and those
    /// of further commands wait before the first byte goes. A value may take longer than [`Deadlines::reply`] to cross the network: bytes that move count as progress.
    pub fn value_limit(mut self, bytes: usize) -> Self {
        self.value_limit = bytes;
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

    /// How long one call of a worker function may take while somebody waits for a reply. Functions of the data plane
    /// (`disco.init_ccl`, collectives) have limits of their own. Default: no limit; a wait warns every 30 s, by `tracing`, which
    /// worker is inside which function ([`Deadlines::warn`]).
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

    /// How many nodes share the workers, this one included.
    #[cfg(target_os = "linux")]
    pub fn over(mut self, nodes: usize) -> Self {
        self.nodes.count = nodes;
        self
    }

    /// Where workers of nodes live: threads of a node's process, or processes of their own, whose output comes back with a
    /// prefix. Default: processes.
    #[cfg(target_os = "linux")]
    pub fn node_workers(mut self, kind: SessionKind) -> Self {
        self.nodes.workers = kind;
        self
    }

    /// Waits for nodes that others start, which needs a [token](Self::token), on this `HOST:PORT`, port 0 for any. Default: any
    /// port of the loopback.
    #[cfg(target_os = "linux")]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.nodes.listen = Some(address.into());
        self.nodes.announce.get_or_insert_default();
        self
    }

    /// Waits for nodes that others start, which needs a [token](Self::token), and says where once somebody listens there: an error
    /// ends the start.
    #[cfg(target_os = "linux")]
    pub fn announce(mut self, announce: impl Fn(&Announcement) -> Result<()> + Send + Sync + 'static) -> Self {
        self.nodes.announce = Some(Announce::new(announce));
        self
    }

    /// What nodes have to know to join. Default: `DISCO_TOKEN`, or what is in the file that `DISCO_TOKEN_FILE` names; where this
    /// program starts the nodes itself, a random one.
    #[cfg(target_os = "linux")]
    pub fn token(mut self, token: Token) -> Self {
        self.nodes.token = Some(token);
        self
    }

    /// Appends what each worker N that is a process prints to `FOLDER/N/stdout.log` and `FOLDER/N/stderr.log`, beside passing it on; a
    /// program that starts again goes on in the same files. Worker 0 is a thread of this process, and has none; nor have workers that
    /// others start, which print for themselves. Nodes on other machines write those of their workers there, by
    /// [`JoinOptions::log_dir`](crate::JoinOptions).
    #[cfg(target_os = "linux")]
    pub fn log_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(folder.into());
        self
    }

    /// How long processes and nodes may take to start. Default: 30 s.
    pub fn start_deadline(mut self, deadline: Duration) -> Self {
        self.start_deadline = deadline;
        self
    }

    /// How long a process or node may be silent before it counts as lost: one that is stopped, that has no processor, or to
    /// which the network is cut. A worker inside a function is not silent. Default: 5 s.
    pub fn silence(mut self, limit: Duration) -> Self {
        self.silence = limit;
        self
    }

    /// How often processes and nodes say that they are there. Default: a fifth of the silence allowed, 1 s.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = Some(every);
        self
    }

    /// Starts the workers. Blocks the calling thread until they have started, for at most [`start_deadline`](Self::start_deadline)
    /// where they are processes or nodes; what an MPI library takes to start is not counted. Builders and sessions are [`Send`]: an
    /// async program starts a session on a thread for work that blocks, such as those of `tokio::task::spawn_blocking`
    /// (`examples/tokio.rs`).
    ///
    /// # Errors
    /// No workers, groups that do not divide them; a heartbeat that is too rare; threads that can't be made; processes that can't be started, that end
    /// or that do not connect in time: which worker, and why. Nodes that do not join in time or are another program's, an
    /// address that is taken; no token for nodes that others start. A log file can't be written, or workers are threads, which have none. This program does not call [`init`](crate::init).
    pub fn start(self) -> Result<LaneSession> {
        #[cfg(all(feature = "mpi", target_os = "linux"))]
        let this = self.with_ranks()?;
        #[cfg(not(all(feature = "mpi", target_os = "linux")))]
        let this = self;
        this.start_as_it_is()
    }

    fn start_as_it_is(self) -> Result<LaneSession> {
        #[cfg_attr(not(target_os = "linux"), expect(unused_mut))]
        let mut world = World::new(self.workers, self.groups)?;
        #[cfg(target_os = "linux")]
        if self.kind == SessionKind::Nodes {
            world = world.on_nodes(self.nodes.count)?;
        }
        let beats = self.kind != SessionKind::Threads;
        if beats && (self.pulse().is_zero() || self.pulse() > self.silence / 2) {
            let (heartbeat, silence) = (self.pulse(), self.silence);
            return Err(Error::invalid(format!(
                "a heartbeat every {heartbeat:?} where {silence:?} of silence are allowed: it is to come at least twice"
            )));
        }
        #[cfg(target_os = "linux")]
        self.check_log_dir()?;
        let mut config = WorkerConfig::new(world);
        config.check = match self.check {
            Some(check) => check,
            None => Variable::read("DISCO_CHECK").flag()?.unwrap_or(false),
        };
        config.value_limit = self.value_limit;
        config.collective_deadline = self.collective_deadline.unwrap_or(config.collective_deadline);
        config.connect_deadline = self.connect_deadline.unwrap_or(config.connect_deadline);
        match self.kind {
            SessionKind::Threads => session::threads(config, self.deadlines),
            #[cfg(target_os = "linux")]
            SessionKind::Processes => self.start_with_processes(config),
            #[cfg(target_os = "linux")]
            SessionKind::Nodes => self.start_with_nodes(config),
            #[cfg(not(target_os = "linux"))]
            other => Err(Error::invalid(format!("sessions of {other} are here on Linux only"))),
        }
    }
}

impl Builder {
    /// How often processes and nodes say that they are there.
    fn pulse(&self) -> Duration {
        self.heartbeat.unwrap_or(self.silence / 5)
    }
}

#[cfg(target_os = "linux")]
impl Builder {
    /// With the ranks that an MPI launcher has started, if there are any: as processes of this machine or, where they are on
    /// several, as nodes. They alone know the token, which is this session's.
    #[cfg(feature = "mpi")]
    fn with_ranks(mut self) -> Result<Self> {
        let is_told = self.kind == SessionKind::Processes && self.launch.is_some();
        let Some(ranks) = crate::ranks::of_session(self.kind, self.workers)?.filter(|_| !is_told) else {
            return Ok(self);
        };
        let machines = ranks.machines();
        if machines == 1 && self.kind == SessionKind::Processes {
            self.launch = Some(ranks.launch(self.start_deadline));
            return Ok(self);
        }
        let token = Token::random()?;
        let listen = Variable::read("DISCO_LISTEN").text()?.map(str::to_owned);
        self.nodes = Nodes {
            // Where they do not share the ranks equally, each rank is a node by itself.
            count: match machines {
                1 => self.nodes.count,
                machines if self.workers.is_multiple_of(machines) => machines,
                _ => self.workers,
            },
            workers: SessionKind::Threads,
            apart: true,
            names: ranks.names(),
            listen: self.nodes.listen.or(listen).or_else(|| (machines > 1).then(|| everywhere().to_owned())),
            announce: Some(ranks.announce(&token, self.start_deadline)),
            token: Some(token),
        };
        self.kind = SessionKind::Nodes;
        Ok(self)
    }

    /// Workers that are threads have no output of their own.
    fn check_log_dir(&self) -> Result<()> {
        let has_processes = match self.kind {
            SessionKind::Threads => false,
            SessionKind::Processes => true,
            SessionKind::Nodes => self.nodes.workers == SessionKind::Processes,
        };
        if let Some(folder) = self.log_dir.as_ref().filter(|_| !has_processes) {
            let folder = folder.display();
            return Err(Error::invalid(format!(
                "log files in {folder} are of workers that are processes, and these are threads, which print as their program does"
            )));
        }
        Ok(())
    }

    fn start_with_processes(&self, config: WorkerConfig) -> Result<LaneSession> {
        let options = self.process_options(config, config.world.size() as u32)?;
        session::processes(options, self.deadlines)
    }

    /// How the processes among the first `workers` workers, all but worker 0, come about.
    fn process_options(&self, config: WorkerConfig, workers: u32) -> Result<processes::Options> {
        let mut options = processes::Options::new(config);
        (options.start, options.heartbeat, options.silence) = (self.start_deadline, self.pulse(), self.silence);
        options.launch = self.launch.clone().map_or_else(crate::role::launch, Ok)?;
        if let Some(folder) = self.log_dir.as_ref().filter(|_| workers > 1) {
            options.output = log_files::beside(options.output, folder, WorkerRange::new(1..workers))?;
        }
        Ok(options)
    }

    /// Node 0 stays on this machine.
    fn start_with_nodes(&self, config: WorkerConfig) -> Result<LaneSession> {
        let Nodes { count, workers: kind, apart, names, listen, token, announce } = &self.nodes;
        let world = config.world;
        let (nodes, here) = if *apart { (world.size() - 1, 1) } else { (count - 1, world.per_node() as u32) };
        let given = token.clone().map_or_else(Token::from_env, |token| Ok(Some(token)))?;
        let token = match (given, announce) {
            (Some(token), _) => token,
            // The nodes that this program starts get it from it.
            (None, None) => Token::random()?,
            (None, Some(_)) => Token::required()?,
        };
        let mut options = NodeOptions::new(nodes, token.clone(), config);
        (options.start, options.heartbeat, options.silence) = (self.start_deadline, self.pulse(), self.silence);
        (options.processes, options.names) = (*kind == SessionKind::Processes, names.clone());
        options.listen = listen.clone().unwrap_or(options.listen);
        options.announce = match announce {
            Some(announce) => announce.clone(),
            None => {
                crate::role::check()?;
                let (start, log_dir) = (self.start_deadline, self.log_dir.clone());
                Announce::starting(move |announcement| {
                    crate::node::start_here(announcement, &token, start, log_dir.as_deref())
                })
            }
        };
        let local = match options.processes {
            true => self.process_options(config, here)?,
            false => processes::Options::new(config),
        };
        session::nodes(options, here, local, self.deadlines)
    }
}
