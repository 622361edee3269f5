//! One random session: its users, failures, recoveries and end.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use disco::ffi::Module;
use disco::{Builder, Deadlines, LaneSession, ReplacementPolicy, SessionKind, WorkerId, block_on};
use rustix::process::{Pid, Signal, kill_process};

use super::bystanders::Bystanders;
use super::cancellations;
use super::changes::{CONSEQUENCES, follows_from_loss, replace, resize};
use super::faults::{Fault, Faults};
use super::functions::Diverged;
use super::library;
use super::random::Random;
use super::subsets;
use super::timelines::{self, Timelines};
use super::user::{User, Wrong};
use super::watch;

/// Silence limit of sessions that stop a process.
const SILENCE: Duration = Duration::from_secs(4);

/// The random configuration of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) kind: SessionKind,
    /// For nodes: their number, and whether their workers are processes.
    pub(crate) nodes: usize,
    pub(crate) of_processes: bool,
    /// For processes, and nodes of processes: whether worker 0 is a process, too.
    apart: bool,
    /// For nodes: the most children of one end; with more nodes, nodes relay for others.
    fan_out: usize,
    /// For nodes: whether connections are encrypted.
    encrypts: bool,
    pub(crate) workers: usize,
    pub(crate) groups: usize,
    check: bool,
    end: End,
    /// Whether a worker is lost by a fault from outside, during collectives.
    is_struck: bool,
    recoveries: usize,
    /// Whether the session replaces lost workers without being asked.
    pub(crate) replaces_at_once: bool,
    /// For processes: the number of spares.
    spares: usize,
    /// The number of records of a timeline; 0 for none.
    records: usize,
}

/// A failure that a session recovers from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Error,
    /// An error of a registered type.
    User,
    Panic,
    Abort,
    /// One worker fails, and another uses the store late.
    Late,
    /// An error in a worker function that a library calls back.
    Library,
}

impl Failure {
    const ALL: [Self; 6] = [Self::Error, Self::User, Self::Panic, Self::Abort, Self::Late, Self::Library];
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Shutdown,
    /// A shutdown while other threads wait for replies and a worker is busy for longer than the close limit.
    ShutdownWhileOthersWait,
    /// A drop on another thread, with commands in flight.
    Drop,
    Kill,
    Exit,
    Stop,
    /// The connections of a node end.
    Cut,
}

impl Setup {
    pub(crate) fn new(kind: SessionKind, random: &mut Random) -> Self {
        let (nodes, workers) = match kind {
            SessionKind::Nodes => {
                let nodes = 2 + random.below(4);
                (nodes, nodes * (1 + random.below(2)))
            }
            SessionKind::Processes => (1, 2 + random.below(3)),
            _ => (1, 1 + random.below(6)),
        };
        let divisors: Vec<usize> = (1..=workers).filter(|groups| workers.is_multiple_of(*groups)).collect();
        let of_processes = random.chance(50);
        let mut ends = vec![End::Shutdown, End::ShutdownWhileOthersWait, End::Drop];
        if kind != SessionKind::Threads {
            ends.extend([End::Kill, End::Exit, End::Stop]);
        }
        if kind == SessionKind::Nodes && !of_processes {
            ends.push(End::Cut);
        }
        let has_processes = kind == SessionKind::Processes || (kind == SessionKind::Nodes && of_processes);
        Self {
            kind,
            nodes,
            of_processes,
            apart: has_processes && random.chance(50),
            fan_out: 1 + random.below(3),
            encrypts: random.chance(75),
            workers,
            groups: random.pick(&divisors),
            check: random.chance(25),
            end: random.pick(&ends),
            is_struck: random.chance(60),
            recoveries: random.below(3),
            replaces_at_once: random.chance(40),
            spares: random.below(3),
            records: random.pick(&[0, 0, 16, 4096]),
        }
    }

    /// A session of nodes that loses a node by a fault from outside.
    pub(crate) fn faulty(random: &mut Random) -> Self {
        let setup = Self::new(SessionKind::Nodes, random);
        let ends: &[End] = if setup.of_processes { &[End::Kill, End::Stop] } else { &[End::Kill, End::Stop, End::Cut] };
        Self { end: random.pick(ends), is_struck: true, recoveries: 0, ..setup }
    }

    /// Whether each worker is a process, which can be a rank of MPI.
    pub(crate) fn may_use_mpi(&self) -> bool {
        self.kind == SessionKind::Processes && self.apart
    }

    /// The backend of the session's communicators.
    pub(crate) fn backend(&self) -> &'static str {
        if self.kind == SessionKind::Nodes { "tcp" } else { "local" }
    }

    fn start(&self, timelines: &Timelines) -> disco::Result<LaneSession> {
        let builder = match self.kind {
            SessionKind::Nodes => {
                let workers = if self.of_processes { SessionKind::Processes } else { SessionKind::Threads };
                let builder = Builder::nodes(self.nodes, self.workers / self.nodes)
                    .node_options(|nodes| nodes.fan_out = Some(self.fan_out));
                builder.node_options(|nodes| {
                    nodes.workers = workers;
                    nodes.encrypts = Some(self.encrypts);
                })
            }
            SessionKind::Processes => {
                Builder::processes(self.workers).process_options(|processes| processes.spares = self.spares)
            }
            kind => Builder::new(kind, self.workers),
        };
        let deadlines = match self.end {
            End::ShutdownWhileOthersWait => Deadlines::default().with_close(Duration::from_millis(100)),
            _ => Deadlines::default(),
        };
        let builder = match self.end {
            End::Stop => builder.silence(SILENCE),
            _ => builder.silence(Duration::from_secs(30)),
        };
        let builder = match self.records {
            0 => builder,
            records => timelines.keep(builder, records),
        };
        let builder = if self.replaces_at_once { builder.replacement(ReplacementPolicy::at_once()) } else { builder };
        builder.apart(self.apart).groups(self.groups).check(self.check).deadlines(deadlines).start()
    }

    /// The first worker that may be killed: not one in the controller's process.
    fn first_victim(&self) -> usize {
        match (self.kind, self.of_processes) {
            (SessionKind::Threads, _) => 0,
            (SessionKind::Nodes, false) => self.workers / self.nodes,
            _ => usize::from(!self.apart),
        }
    }
}

/// Runs a session of its setup from start to end.
pub(crate) fn run(setup: &Setup, random: &mut Random) -> Wrong<()> {
    watch::step(format_args!("start of {setup:?}"));
    let timelines = Timelines::default();
    let session = setup.start(&timelines).map_err(|error| format!("start: {error}"))?;
    let session = Arc::new(session);
    let mut setup = *setup;
    init(&session, setup.backend())?;
    let subset = if random.chance(50) { Some(subsets::start(&session, setup.backend(), random)?) } else { None };
    let mut keeper = User::new(&session, random.fork());
    for _ in 0..setup.recoveries {
        use_together(&session, random)?;
        keeper.run(4)?;
        let failure = random.pick(&Failure::ALL);
        fail_and_recover(&setup, &session, failure, random)?;
        // Tensors made before the failure still exist.
        keeper.check_all()?;
    }
    // The failures of this session have left its subset alone.
    thread::scope(|scope| {
        let beside = subset.as_ref().map(|subset| {
            let random = random.fork();
            scope.spawn(move || subsets::run(subset, setup.backend(), random))
        });
        let used = use_together(&session, random);
        let beside = beside.map(|user| user.join().map_err(|_| "the user of a subset panicked".to_owned())?);
        used.and(beside.unwrap_or(Ok(())))
    })?;
    let subset = subset.filter(|_| random.chance(50));
    drop(keeper);
    if random.chance(60) {
        cancellations::run(&session, &setup, random)?;
    }
    if random.chance(40) {
        resize(&mut setup, &session, random)?;
    }
    if random.chance(30) {
        watch::step("recordings");
        timelines::check_recordings(&session)?;
    }
    end(&setup, session, random)?;
    if let Some(subset) = subset {
        watch::step("end of a subset");
        match block_on(subset.sync_all()) {
            Err(disco::Error::Closed(_) | disco::Error::Lost(_)) => {}
            other => return Err(format!("after the end of its parent, sync_all of a subset gave {other:?}")),
        }
    }
    timelines.check(setup.records > 0, setup.end == End::Shutdown)
}

pub(crate) fn init(session: &LaneSession, backend: &str) -> Wrong<()> {
    watch::step("init_ccl");
    block_on(session.init_ccl(backend, &[])).map_err(|error| format!("init_ccl: {error}"))
}

/// Runs one to three users concurrently, each on its own thread.
pub(crate) fn use_together(session: &LaneSession, random: &mut Random) -> Wrong<()> {
    let count = 1 + random.below(3);
    watch::step(format_args!("{count} users"));
    thread::scope(|scope| {
        let users: Vec<_> = (0..count)
            .map(|_| {
                let (mut user, steps) = (User::new(session, random.fork()), 3 + random.below(12));
                scope.spawn(move || user.run(steps))
            })
            .collect();
        users.into_iter().try_for_each(|user| user.join().map_err(|_| "a user panicked".to_owned())?)
    })
}

/// Calls a function and drops its result.
fn call(session: &LaneSession, function: &str, args: impl disco::IntoArgs) -> disco::Result<()> {
    block_on(async { session.call(function, args).await }).map(drop)
}

/// Makes a library call back the worker function that fails on `worker`.
fn call_back(session: &LaneSession, worker: usize) -> disco::Result<()> {
    let Some(path) = library::path() else { return Ok(()) };
    block_on(async {
        let apply = Module::load(session, path).await?.function(session, "apply").await?;
        let fail = session.function("soak.fail").await?;
        session.call(&apply, (&fail, worker as i64, "error")).await.map(drop)
    })
}

fn fail_and_recover(setup: &Setup, session: &Arc<LaneSession>, failure: Failure, random: &mut Random) -> Wrong<()> {
    let failure = match failure {
        Failure::Late if setup.workers < 2 => Failure::Panic,
        Failure::Library if library::path().is_none() => Failure::Error,
        other => other,
    };
    let worker = random.below(setup.workers);
    watch::step(format_args!("{failure:?} of worker {worker}"));
    let bystanders = Bystanders::start(session, random.below(4), random);
    let mut user = User::new(session, random.fork());
    user.submit(random.below(4));
    let how = match failure {
        Failure::Panic => "panic",
        Failure::Abort => "abort",
        _ => "error",
    };
    let failed = if failure == Failure::Late {
        let late = (worker + 1) % setup.workers;
        call(session, "soak.late", (late as i64, 5 + random.below(100) as i64))
    } else {
        Ok(())
    };
    let step = random.below(300) as i64;
    let failed = failed.and_then(|()| match failure {
        Failure::Library => call_back(session, worker),
        Failure::User => call(session, "soak.diverge", (worker as i64, step, random.chance(50))),
        _ => call(session, "soak.fail", (worker as i64, how)),
    });
    failed.map_err(|error| format!("before the failure: {error}"))?;
    user.submit(random.below(4));
    let told = block_on(session.sync_all());
    let diverged = (failure == Failure::User).then(|| Diverged::of(step));
    let expected = told.as_ref().err().is_some_and(|error| {
        let text = error.to_string();
        error.downcast_ref() == diverged.as_ref()
            && text.contains("on purpose")
            && (failure == Failure::Abort || text.contains(&format!("worker {worker}")))
    });
    if !expected {
        return Err(format!("after {failure:?} of worker {worker}, sync_all gave {told:?}"));
    }
    bystanders.join(&["on purpose"])?;
    go_on(setup, session)?;
    let count = block_on(async {
        let count = session.call("soak.count", ()).await?;
        session.get::<i64>(&count, WorkerId::new(0)).await
    });
    match count {
        Ok(0) => Ok(()),
        other => Err(format!("a late worker of an earlier epoch counted in this one: {other:?}")),
    }
}

/// Makes a session usable again, with new communicators.
pub(crate) fn go_on(setup: &Setup, session: &LaneSession) -> Wrong<()> {
    init(session, setup.backend())
}

fn end(setup: &Setup, session: Arc<LaneSession>, random: &mut Random) -> Wrong<()> {
    let how = setup.end;
    watch::step(format_args!("end: {how:?}"));
    let count = random.below(4);
    match how {
        End::Shutdown => {
            User::new(&session, random.fork()).submit(random.below(6));
            block_on(session.shutdown()).map_err(|error| format!("shutdown: {error}"))?;
            watch::step("drop after shutdown");
            Ok(())
        }
        End::ShutdownWhileOthersWait => {
            let bystanders = Bystanders::start(&session, 1 + count, random);
            let (worker, milliseconds) = (random.below(setup.workers) as i64, random.pick(&[0i64, 50, 600]));
            call(&session, "soak.sleep", (worker, milliseconds)).map_err(|error| format!("sleep: {error}"))?;
            random.pause(Duration::from_millis(30));
            let ended = block_on(session.shutdown()).map_err(|error| error.to_string());
            // On a busy machine, a shutdown may also miss its limit after a shorter sleep.
            if let Some(error) = ended.err().filter(|error| !error.contains("not stopped after")) {
                return Err(format!("shutdown: {error}"));
            }
            // At the limit, workers are aborted, since "the session shuts down".
            bystanders.join(&["shut down", "shuts down", "lost"])
        }
        End::Drop => {
            User::new(&session, random.fork()).submit(random.below(6));
            let dropped = thread::spawn(move || drop(session)).join();
            dropped.map_err(|_| "the drop of a session panicked".to_owned())
        }
        End::Kill | End::Exit | End::Stop | End::Cut => end_with_loss(setup, &session, count, random),
    }
}

/// Ends a session that loses a worker.
fn end_with_loss(setup: &Setup, session: &Arc<LaneSession>, bystanders: usize, random: &mut Random) -> Wrong<()> {
    let first = setup.first_victim();
    let worker = first + random.below(setup.workers - first);
    let bystanders = Bystanders::start(session, bystanders, random);
    let mut user = User::new(session, random.fork());
    user.submit(random.below(6));
    let failure = [(End::Kill, "kill"), (End::Exit, "exit"), (End::Stop, "stop"), (End::Cut, "cut")];
    let failure = failure.into_iter().find(|(end, _)| *end == setup.end).map_or("kill", |(_, name)| name);
    let fault = match setup.end {
        End::Kill => Some(Fault::Kill).filter(|_| setup.is_struck),
        End::Stop => Some(Fault::Stop).filter(|_| setup.is_struck),
        End::Cut => Some(Fault::Cut),
        _ => None,
    };
    if let Some(fault) = fault {
        strike(session, worker, fault, random)?;
    } else {
        call(session, "soak.fail", (worker as i64, failure)).map_err(|error| format!("{failure}: {error}"))?;
    }
    user.submit(random.below(6));
    let told = block_on(session.sync_all());
    let consequences = if setup.replaces_at_once { &CONSEQUENCES[..] } else { &[] };
    bystanders.join(&[&["lost", "aborted", "has cancelled"], consequences].concat())?;
    match told {
        Err(disco::Error::Lost(loss)) if loss.workers().contains(WorkerId::new(worker as u32)) => {}
        // Another caller was told of the loss.
        Ok(()) if setup.replaces_at_once => {}
        Err(error) if setup.replaces_at_once && follows_from_loss(&error) => {}
        other => return Err(format!("after {failure} of worker {worker}, sync_all gave {other:?}")),
    }
    match random.below(3) {
        0 => {
            replace(setup, session, worker, random)?;
            if setup.kind == SessionKind::Nodes && setup.of_processes && random.chance(50) {
                lose_again(setup, session, worker, random)?;
            }
        }
        1 => resize(&mut { *setup }, session, random)?,
        _ => {}
    }
    if let Some(fault) = fault.filter(|_| setup.kind == SessionKind::Nodes) {
        Faults::add(fault);
    }
    watch::step("end of a lost session");
    if random.chance(50) {
        _ = block_on(session.shutdown());
    }
    Ok(())
}

/// Kills the process of a worker that was replaced, or the node that has started it, and replaces what is lost.
fn lose_again(setup: &Setup, session: &LaneSession, worker: usize, random: &mut Random) -> Wrong<()> {
    let is_of_controller = worker < setup.workers / setup.nodes;
    let function = if is_of_controller || random.chance(50) { "soak.pid" } else { "tests.parent" };
    let pid = pid_of(session, function, worker)?;
    watch::step(format_args!("kill of process {pid:?} of {function} after a replacement"));
    kill_process(pid, Signal::KILL).map_err(|error| error.to_string())?;
    let error = loop {
        if let Err(error) = block_on(session.sync_all()) {
            break error;
        }
    };
    if !follows_from_loss(&error) {
        return Err(format!("sync_all after the loss of process {pid:?}: {error}"));
    }
    replace(setup, session, worker, random)
}

/// The process id that a function returns on a worker.
fn pid_of(session: &LaneSession, function: &str, worker: usize) -> Wrong<Pid> {
    let pid = block_on(async {
        let pid = session.call(function, ()).await?;
        session.get::<i64>(&pid, WorkerId::new(worker as u32)).await
    });
    let pid = pid.map_err(|error| format!("{function}: {error}"))?;
    Pid::from_raw(pid as i32).ok_or_else(|| "a worker has process id 0".to_owned())
}

/// Sends a signal to a worker's process, or ends its connections, during large all-reduces or cancellations.
fn strike(session: &LaneSession, worker: usize, how: Fault, random: &mut Random) -> Wrong<()> {
    let pid = pid_of(session, "soak.pid", worker)?;
    if how == Fault::Cut {
        let cut = call(session, "soak.cut", (worker as i64, random.below(60) as i64));
        cut.map_err(|error| format!("soak.cut: {error}"))?;
    }
    // A cancellation could fail the session before the connections end.
    if how != Fault::Cut && random.chance(50) {
        cancellations::before_a_loss(session, random);
    } else {
        call(session, "soak.reduce", (4i64 << 20, 1000i64)).map_err(|error| format!("soak.reduce: {error}"))?;
    }
    watch::step(format_args!("{how:?} of process {pid:?} from outside"));
    let signal = match how {
        Fault::Kill => Signal::KILL,
        Fault::Stop => Signal::STOP,
        Fault::Cut => return Ok(()),
    };
    random.pause(Duration::from_millis(60));
    kill_process(pid, signal).map_err(|error| error.to_string())
}
