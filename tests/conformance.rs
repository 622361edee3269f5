//! The conformance suite over every lane and every backend of this program, as tests named like
//! `local::all_reduce::bf16::avg` and `threads::frames_arrive_in_order_and_whole_on_all_workers`. What `local` does between
//! processes is judged as `local-shared` and `local-private`, by where the tensors are.

#![allow(clippy::unwrap_used, reason = "tests")]

mod private;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use disco::worker::WorkerConfig;
use disco::{Builder, Channel, Error, Result, Session, WorkerRange, World};
use disco_channel::nodes::{self, NodeLane};
use disco_channel::processes::{self, Invitation, ProcessLane};
use disco_channel::threads::ThreadLane;
use disco_conformance::{Check, Harness, Outcome, Required, Wish, communicator, lane};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Sub-cases that `local` runs, each counted on each worker. A case that is lost by accident shows here; whoever adds or
/// removes some on purpose writes down the number that the failure gives.
const EXECUTED_BY_LOCAL: usize = 376_774;

/// Workers that are threads of this process.
#[derive(Debug)]
struct Threads;

impl lane::Harness for Threads {
    fn name(&self) -> &str {
        "threads"
    }

    fn lane(&self, workers: WorkerRange, role: lane::Role) -> Result<Box<dyn Channel>> {
        let run = move |worker, endpoint| lane::play(role, worker, endpoint);
        Ok(Box::new(ThreadLane::new(workers, Arc::default(), run)))
    }
}

/// Workers that are processes of this machine, whose commands come through shared memory or over sockets.
#[derive(Debug)]
struct Processes {
    ring: bool,
}

/// Tells a worker's process its role.
const ROLE: &str = "DISCO_TEST_ROLE";

impl lane::Harness for Processes {
    fn name(&self) -> &str {
        if self.ring { "processes" } else { "processes-over-sockets" }
    }

    fn lane(&self, workers: WorkerRange, role: lane::Role) -> Result<Box<dyn Channel>> {
        let mut options = processes::Options::new(WorkerConfig::new(World::new(1, 1)?));
        options.launch = options.launch.env(ROLE, role.name());
        options.ring = self.ring;
        Ok(Box::new(ProcessLane::new(workers, Arc::default(), options)))
    }
}

/// Workers of nodes, which are threads of this process here: of one node or of as many as there are workers, which are threads
/// or processes of their own.
#[derive(Debug)]
struct Nodes {
    name: &'static str,
    of_one: bool,
    processes: bool,
}

impl lane::Harness for Nodes {
    fn name(&self) -> &str {
        self.name
    }

    fn lane(&self, workers: WorkerRange, role: lane::Role) -> Result<Box<dyn Channel>> {
        let count = workers.len();
        let config = WorkerConfig::new(World::new(1, 1)?);
        let token = nodes::Token::random()?;
        let mut options = nodes::Options::new(if self.of_one { count } else { 1 }, token.clone(), config);
        let processes = self.processes;
        options.announce = nodes::Announce::new(move |announcement| {
            for _ in 0..announcement.nodes {
                let join = nodes::JoinOptions::new(announcement.address.to_string(), token.clone());
                std::thread::spawn(move || {
                    nodes::serve(&join, |assignment, shared, output| {
                        let workers = assignment.workers;
                        if !processes {
                            let run = move |worker, endpoint| lane::play(role, worker, endpoint);
                            return Ok(Arc::new(ThreadLane::new(workers, shared, run)));
                        }
                        let mut options = processes::Options::new(assignment.config);
                        options.launch = options.launch.env(ROLE, role.name());
                        options.output = output;
                        Ok(Arc::new(ProcessLane::new(workers, shared, options)))
                    })
                });
            }
            Ok(())
        });
        Ok(Box::new(NodeLane::new(workers, Arc::default(), options)))
    }
}

/// Plays the role of a worker, in a process that was started as one.
fn serve(invitation: Result<Invitation>) -> ExitCode {
    let served = invitation.and_then(|invitation| {
        let role = std::env::var(ROLE).map_err(|_| Error::invalid(format!("{ROLE} is not set")))?.parse()?;
        processes::serve(&invitation, |worker, _, endpoint| lane::play(role, worker, endpoint))
    });
    served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// The built-in backend among processes.
#[derive(Debug)]
struct AmongProcesses;

impl Harness for AmongProcesses {
    fn name(&self) -> &str {
        "local-processes"
    }

    fn backend(&self) -> &str {
        "local"
    }

    fn worlds(&self) -> Vec<World> {
        [(2, 1), (3, 1), (4, 2)].map(|(workers, groups)| World::new(workers, groups).unwrap()).to_vec()
    }

    fn start(&self, wish: &Wish) -> Result<Box<dyn Session>> {
        let builder = Builder::processes(wish.world.size()).groups(wish.world.groups()).check(wish.check);
        Ok(Box::new(builder.collective_deadline(wish.collective_deadline).start()?))
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn detects_mismatches(&self) -> bool {
        true
    }
}

/// A backend among threads.
#[derive(Debug)]
struct AmongThreads {
    backend: &'static str,
    /// Bit-identical, and the ranks compare what they call.
    is_own: bool,
}

impl Harness for AmongThreads {
    fn name(&self) -> &str {
        self.backend
    }

    fn backend(&self) -> &str {
        self.backend
    }

    fn worlds(&self) -> Vec<World> {
        [(1, 1), (2, 1), (3, 1), (4, 2), (7, 1)].map(|(workers, groups)| World::new(workers, groups).unwrap()).to_vec()
    }

    fn start(&self, wish: &Wish) -> Result<Box<dyn Session>> {
        let builder = Builder::threads(wish.world.size()).groups(wish.world.groups()).check(wish.check);
        Ok(Box::new(builder.collective_deadline(wish.collective_deadline).start()?))
    }

    fn is_exact(&self) -> bool {
        self.is_own
    }

    fn detects_mismatches(&self) -> bool {
        self.is_own
    }
}

/// One backend's suite in this run.
struct Judged {
    suite: Arc<communicator::Suite>,
    executed: Arc<AtomicUsize>,
    skipped: Arc<AtomicUsize>,
}

fn main() -> ExitCode {
    if std::env::var_os(ROLE).is_some()
        && let Some(invitation) = Invitation::take()
    {
        return serve(invitation);
    }
    disco::init();
    let mut arguments = Arguments::from_args();
    // A dot each, unless somebody looks for some of them: there are hundreds.
    arguments.quiet |= arguments.filter.is_none() && arguments.format.is_none();
    let required = Required::from_env();
    let local = AmongThreads { backend: "local", is_own: true };
    let names = ["local", "local-private", "local-processes", "threads", "processes", "processes-over-sockets"];
    // Others are for tests of their crates, of processes and of the command.
    if let Some(unknown) = required.unknown(&names).find(|name| !["mpi", "nccl", "tsan"].contains(name)) {
        println!("DISCO_REQUIRE asks for `{unknown}`; this program has {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let (local, mut trials) = judge(Box::new(local) as Box<dyn Harness>, &required);
    let mut others = Vec::new();
    for harness in [Box::new(AmongProcesses) as Box<dyn Harness>, Box::new(private::Private)] {
        let (judged, more) = judge(harness, &required);
        trials.extend(more);
        others.push(judged.suite);
    }
    trials.extend(lane_trials(Threads));
    trials.extend(lane_trials(Processes { ring: true }));
    trials.extend(lane_trials(Processes { ring: false }));
    trials.extend(lane_trials(Nodes { name: "nodes", of_one: false, processes: false }));
    trials.extend(lane_trials(Nodes { name: "nodes-of-one", of_one: true, processes: false }));
    trials.extend(lane_trials(Nodes { name: "nodes-of-processes", of_one: false, processes: true }));
    let is_whole = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.list && !arguments.ignored;
    let conclusion = libtest_mimic::run(&arguments, trials);
    for suite in others.iter().chain([&local.suite]) {
        if let Err(error) = suite.close() {
            println!("sessions of {suite:?} did not end: {error}");
            return ExitCode::FAILURE;
        }
    }
    if is_whole && !conclusion.has_failed() && !local.is_complete() {
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

impl Judged {
    /// `local` is always there and does everything.
    fn is_complete(&self) -> bool {
        let (executed, skipped) = (self.executed.load(Ordering::Relaxed), self.skipped.load(Ordering::Relaxed));
        if skipped > 0 {
            println!("local: {skipped} checks were skipped; it has all operations, so that none may be");
        }
        if executed != EXECUTED_BY_LOCAL {
            println!(
                "local: {executed} sub-cases were executed, not {EXECUTED_BY_LOCAL}. If that is meant, write {executed} \
                 as EXECUTED_BY_LOCAL in tests/conformance.rs"
            );
        }
        skipped == 0 && executed == EXECUTED_BY_LOCAL
    }
}

/// A test for each check of a backend. Where it is absent they are skipped, or fail if it is required.
fn judge(harness: Box<dyn Harness>, required: &Required) -> (Judged, Vec<Trial>) {
    let (name, absent) = (harness.name().to_owned(), harness.probe().err());
    let is_required = required.contains(&name);
    let judged = Judged {
        suite: Arc::new(communicator::Suite::new(harness.into())),
        executed: Arc::default(),
        skipped: Arc::default(),
    };
    let trial = |check: Check| {
        let (suite, executed, skipped) = (judged.suite.clone(), judged.executed.clone(), judged.skipped.clone());
        let absent = absent.clone();
        Trial::ignorable_test(format!("{name}::{}", check.name()), move || match (absent, is_required) {
            (Some(absent), true) => Err(Failed::from(format!("DISCO_REQUIRE: {absent}"))),
            (Some(absent), false) => Ok(Completion::ignored_with(absent)),
            (None, _) => completion(suite.run(&check), &executed, &skipped),
        })
    };
    let trials = communicator::Suite::checks().into_iter().map(trial).collect();
    (judged, trials)
}

fn lane_trials(harness: impl lane::Harness + 'static) -> Vec<Trial> {
    let name = lane::Harness::name(&harness).to_owned();
    let suite = Arc::new(lane::Suite::new(Arc::new(harness)));
    let trials = lane::Suite::checks().into_iter().map(|check| {
        let suite = suite.clone();
        Trial::ignorable_test(format!("{name}::{}", check.name()), move || {
            completion(suite.run(&check), &AtomicUsize::new(0), &AtomicUsize::new(0))
        })
    });
    trials.collect()
}

fn completion(outcome: Outcome, executed: &AtomicUsize, skipped: &AtomicUsize) -> Result<Completion, Failed> {
    match outcome {
        Outcome::Passed { executed: more } => {
            executed.fetch_add(more, Ordering::Relaxed);
            Ok(Completion::Completed)
        }
        Outcome::Skipped { reason } => {
            skipped.fetch_add(1, Ordering::Relaxed);
            Ok(Completion::ignored_with(reason))
        }
        Outcome::Failed { why } => Err(Failed::from(why)),
    }
}
