//! Checks trees under random latencies, disruptions and failures.

use std::thread;
use std::time::Duration;

use disco_core::activity::{Activity, Recording};
use disco_core::channel::Signal;
use disco_core::{Command, Frame, RegisterId, WorkerSet};

use super::super::random::Random;
use super::costs::Costs;
use super::end::End;
use super::lower;
use super::plan::{Disruption, Job, Plan, Stuck};
use super::world::{Entry, MICRO, Nanos, SECOND, World};
use crate::controller::Event;
use crate::fault::{self, Fault};

/// Sessions of one run.
const RUNS: u64 = 500;
/// Sessions of one run with `DISCO_LONG_TESTS`.
const LONG_RUNS: u64 = 10_000;
/// Number of threads that share the sessions.
const THREADS: usize = 2;
/// Violations after which a thread stops.
const SHOWN: usize = 5;
/// Time within which a loss must be reported, and a session must end.
const LIMIT: Nanos = 60 * SECOND;
/// Time for workers to leave by themselves.
const CLOSE: Duration = Duration::from_secs(1);
/// How long a machine is frozen that does not leave.
const STUCK: Nanos = 30 * SECOND;

impl World {
    /// Whether the session has started.
    ///
    /// # Errors
    /// The start has failed, or does not end.
    pub(super) fn start(&mut self) -> Result<Nanos, String> {
        let at = self.run(Self::has_start_ended);
        let started = self.ends[0].lower.as_ref().and_then(|lower| lower.started.as_ref());
        match (self.events.broken.clone(), lower::failure(started), started) {
            (None, None, Some(Ok(()))) => Ok(at),
            (broken, failure, _) => Err(format!("no start: {broken:?} {failure:?}")),
        }
    }

    /// Sends a command to all nodes. Returns the time before.
    pub(super) fn command(&mut self, seq: u64, command: Command) -> Nanos {
        if matches!(command, Command::SyncAll) {
            self.synced = Some((seq, WorkerSet::new(self.all())));
        }
        self.reached = 0;
        let frame = Frame::new(seq, [], command);
        self.turn(0, |world| {
            let start = world.clock;
            if let Err(error) = world.submit(0, &frame) {
                world.record_violation(format!("the controller can't send: {error}"));
            }
            start
        })
    }

    pub(super) fn all(&self) -> disco_core::WorkerRange {
        disco_core::WorkerRange::new(0..(self.ends.len() - 1) as u32 * self.per_node)
    }

    /// Feeds an event to the controller's engine.
    pub(super) fn tell(&mut self, event: Event) {
        self.turn(0, |world| world.lower(0, event));
    }

    fn has_start_ended(&self) -> bool {
        self.ends[0].lower.as_ref().is_some_and(|lower| lower.started.is_some())
    }

    /// The error of the start if it has failed; `None` while it goes on.
    fn start_failure(&self) -> Option<Option<String>> {
        let started = self.ends[0].lower.as_ref().and_then(|lower| lower.started.as_ref());
        started.map(|started| lower::failure(Some(started)))
    }

    /// The program of the session goes on once its machine does.
    fn thaw_controller(&mut self) {
        let until = self.ends[0].frozen_until;
        if until > self.now {
            self.run(|world| world.now >= until || world.ends[0].is_dead);
        }
    }
}

fn call() -> Command {
    Command::KillReg { register: RegisterId::new(1) }
}

/// A session that follows its plan.
struct Script {
    plan: Plan,
    world: World,
    random: Random,
    seq: u64,
}

impl Script {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random);
        let size = (plan.nodes, plan.per_node, plan.fan_out);
        let mut world = World::new(size, plan.latency.clone(), Costs::default(), random.next());
        for (at, disruption) in &plan.disruptions {
            world.at(*at, Entry::Disrupt(*disruption));
        }
        Self { plan, world, random, seq: 0 }
    }

    /// # Errors
    /// A rule is broken.
    fn run(&mut self) -> Result<(), String> {
        let until = self.limit();
        self.world.run(|world| world.has_start_ended() || world.ends[0].is_dead || world.now > until);
        match self.world.start_failure() {
            _ if self.world.ends[0].is_dead => {}
            None => return Err("the start does not end".into()),
            Some(Some(why)) if self.world.expected.count == 0 => return Err(format!("the start has failed: {why}")),
            Some(Some(why)) if why.is_empty() => return Err("the start fails without a reason".into()),
            Some(Some(_)) => self.world.tell(Event::Dropped),
            Some(None) => self.serve()?,
        }
        self.end()
    }

    /// When a wait that has begun now must be over.
    fn limit(&self) -> Nanos {
        self.world.now + LIMIT + self.plan.frozen()
    }

    fn command(&mut self, command: Command, job: Job) {
        self.seq += 1;
        self.world.session.jobs.insert(self.seq, job);
        self.world.command(self.seq, command);
    }

    fn has_ended(&self) -> bool {
        self.world.ends[0].is_dead || !self.world.lost.is_empty()
    }

    fn serve(&mut self) -> Result<(), String> {
        for _ in 0..self.plan.steps {
            self.world.thaw_controller();
            if self.has_ended() {
                break;
            }
            let until = self.world.now + self.random.of(0..self.plan.pause);
            match self.random.of(0..10) {
                0..3 => self.sync()?,
                3..5 => self.command(call(), Job::Meet),
                5 if self.plan.fails => {
                    let who = 1 + self.random.of(0..self.plan.nodes as u64) as usize;
                    self.command(call(), Job::Fail(who));
                }
                5..7 => self.command(call(), Job::Nothing),
                7 => self.ask_for_replacement(),
                _ => _ = self.world.run(|world| world.now >= until || world.ends[0].is_dead),
            }
        }
        if !self.plan.ends_early {
            self.sync_unless_ended()?;
            self.await_losses()?;
        }
        Ok(())
    }

    /// Asks the node of a worker for a new one in its place.
    fn ask_for_replacement(&mut self) {
        let workers = self.world.all();
        let worker = workers.get(self.random.of(0..workers.len() as u64) as usize).unwrap();
        self.world.asked.push(worker);
        let addresses = vec!["192.0.2.1:4000".to_owned()];
        self.world.tell(Event::Signal(Signal::Replace { workers: worker.into(), addresses }));
    }

    fn sync_unless_ended(&mut self) -> Result<(), String> {
        self.world.thaw_controller();
        if self.has_ended() { Ok(()) } else { self.sync() }
    }

    /// Waits for all replies, and recovers from a failure.
    fn sync(&mut self) -> Result<(), String> {
        self.command(Command::SyncAll, Job::Nothing);
        let until = self.limit();
        self.world
            .run(|world| world.is_synced() || !world.lost.is_empty() || world.ends[0].is_dead || world.now > until);
        if self.has_ended() {
            return Ok(());
        }
        if !self.world.is_synced() {
            return Err(format!("sync {} does not end", self.seq));
        }
        if !self.world.asked.is_empty() {
            return Err(format!("sync {}: the nodes of {:?} know of no replacement", self.seq, self.world.asked));
        }
        let Some(failure) = self.world.session.failure.take() else { return Ok(()) };
        if failure.aborted {
            return Err(format!("sync {}: the root cause follows from an abort: {failure}", self.seq));
        }
        self.world.session.epoch += 1;
        let epoch = self.world.session.epoch;
        self.command(Command::Recover { epoch }, Job::Nothing);
        Ok(())
    }

    /// Waits until all disruptions have happened, and their losses are reported.
    fn await_losses(&mut self) -> Result<(), String> {
        let (all, until) = (self.plan.disruptions.len(), self.limit());
        let has_ended = |world: &World| !world.lost.is_empty() || world.ends[0].is_dead;
        self.world.run(|world| world.expected.count == all || has_ended(world) || world.now > until);
        if !self.world.expected.must.is_empty() {
            let until = self.limit();
            self.world.run(|world| has_ended(world) || world.now > until);
            if !self.has_ended() {
                return Err(format!("no loss is reported: {:?}", self.world.expected));
            }
        }
        if !self.world.lost.is_empty() {
            let until = self.limit();
            self.world.run(|world| world.have_stopped() || world.ends[0].is_dead || world.now > until);
            if !self.world.have_stopped() && !self.world.ends[0].is_dead {
                let goes_on = self.world.ends[1..].iter().position(|end| !end.is_dead && end.stopped_at.is_none());
                return Err(format!("node {:?} goes on after a loss", goes_on.map(|index| index + 1)));
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        self.world.thaw_controller();
        let has_started = matches!(self.world.start_failure(), Some(None));
        if has_started && !self.world.ends[0].is_dead {
            match self.plan.stuck {
                Some(Stuck::Worker(end)) => self.world.ends[end].jobs.is_stuck = true,
                Some(Stuck::Machine(end)) => {
                    self.world.ends[end].jobs.is_stuck = true;
                    let until_told = CLOSE.as_nanos() as Nanos - SECOND / 100;
                    self.world.at(self.world.now + until_told, Entry::Disrupt(Disruption::Freeze(end, STUCK)));
                }
                None => {}
            }
            if self.world.lost.is_empty() {
                self.command(Command::Shutdown, Job::Nothing)
            } else {
                self.world.tell(Event::Signal(Signal::Shutdown))
            }
            self.world.tell(Event::Close(CLOSE));
        }
        let until = self.limit();
        self.world.run(|world| world.ends.iter().all(End::is_over) || world.now > until);
        if let Some(end) = self.world.ends.iter().position(|end| !end.is_over()) {
            return Err(format!("end {end} does not end"));
        }
        if self.plan.disruptions.is_empty() {
            self.check_departures()?;
        }
        let lost = std::mem::take(&mut self.world.lost);
        lost.iter().for_each(|(_, loss)| self.world.check_loss(loss));
        Ok(())
    }

    /// Checks a session without disruptions: its workers have left, and stuck ones are named.
    fn check_departures(&self) -> Result<(), String> {
        let stuck = self.world.ends[0].lower.as_ref().and_then(|lower| lower.engine.stuck()).unwrap_or_default();
        let is_right = match self.plan.stuck {
            None => stuck.is_empty() && self.world.left.is_full(),
            Some(Stuck::Worker(end)) => *stuck == [self.world.ends[end].workers.first().to_string()],
            Some(Stuck::Machine(end)) => {
                let (first, why) =
                    (self.world.ends[end].workers.first(), format!("node {end} (host{end:05}) does not answer"));
                stuck.first().is_some_and(|stuck| stuck.starts_with(&format!("{first} (")) && stuck.contains(&why))
            }
        };
        if is_right && self.world.lost.is_empty() {
            return Ok(());
        }
        let (missing, lost): (Vec<_>, _) = (self.world.left.missing().collect(), &self.world.lost);
        Err(format!("reported as stuck: {stuck:?}; these have not left: {missing:?}; lost: {lost:?}"))
    }
}

/// Runs a session that a seed describes.
fn run(seed: u64) -> Result<(), String> {
    let mut script = Script::new(seed);
    let result = script.run();
    let broken = script.world.events.broken.take();
    broken.map_or(result, Err).map_err(|why| format!("{why}; the plan: {:?}", script.plan))
}

#[test]
fn trees_keep_order_and_replies_and_name_the_dead() {
    if let Some(seed) = std::env::var("DISCO_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed).unwrap();
    }
    let runs = if std::env::var_os("DISCO_LONG_TESTS").is_some() { LONG_RUNS } else { RUNS };
    let check = |seed| run(seed).err().map(|why| format!("DISCO_SEED={seed}: {why}"));
    let share = |first| (first..runs).step_by(THREADS).filter_map(check).take(SHOWN).collect::<Vec<_>>();
    let broken: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64).map(|first| scope.spawn(move || share(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(broken.is_empty(), "trees broke a rule:\n{}", broken.join("\n"));
}

#[test]
fn faults_of_trees_are_found() {
    for (planted, expected) in [
        (Fault::NoHeartbeat, "a wrong loss"),
        (Fault::LossIgnored, "no loss is reported"),
        (Fault::SilentLeave, "reported as stuck"),
    ] {
        let is_found = |seed: &u64| {
            fault::plant(Some(planted));
            let ran = run(*seed);
            fault::plant(None);
            ran.is_err_and(|why| why.contains(expected))
        };
        let found = (0..10 * RUNS).find(is_found);
        assert!(found.is_some(), "no seed breaks the rule `{expected}` because of {planted:?}");
        println!("{planted:?} is found by seed {}", found.unwrap());
    }
}

/// The abort of a loss need not come from the controller.
#[test]
fn a_loss_aborts_the_nodes_of_its_relay_while_the_controller_is_frozen() {
    let mut world = World::new((14, 1, 2), 10 * MICRO..50 * MICRO, Costs::default(), 1);
    world.start().unwrap();
    // Nodes 2 and 5 are children of node 1.
    assert_eq!([2, 5].map(|end| world.parent(end)), [Some(1); 2]);
    let frozen_until = world.now + 4 * SECOND;
    world.ends[0].frozen_until = frozen_until;
    let died = world.now + SECOND;
    world.at(died, Entry::Kill(2));
    let is_aborted = |world: &World, end: usize| world.ends[end].stopped_at.is_some();
    world.run(|world| [1, 5].into_iter().all(|end| is_aborted(world, end)) || world.now > frozen_until);
    assert!(world.now < died + SECOND, "aborted {} us after the death", (world.now - died) / MICRO);
    assert!(!is_aborted(&world, 8), "node 8 is not behind node 1");
    world.run(|world| world.have_stopped());
    assert_eq!(world.lost.len(), 1);
}

/// A path in the tree has up to 4 links. Each direction of a link has latencies of its own, of up to 5 ms.
#[test]
fn the_clocks_of_a_tree_are_aligned_within_their_errors() {
    let mut world = World::new((14, 1, 2), 10 * MICRO..5_000 * MICRO, Costs::default(), 1);
    world.start().unwrap();
    let begun = world.now;
    let end = begun + 30 * SECOND;
    world.run(|world| world.now > end);
    for node in 1..world.ends.len() {
        let worker = world.ends[node].workers.first();
        world.turn(node, |world| world.records(node, worker, Activity::default().encode(1).into()));
    }
    world.run(|world| world.recordings.len() + 1 == world.ends.len() || world.now > end + SECOND);
    let mut errors = Vec::new();
    for node in 1..world.ends.len() {
        let bytes = &world.recordings[&world.ends[node].workers.first()];
        let alignment = Recording::decode(bytes).unwrap().alignment;
        for step in 0..=30 {
            world.clock = begun + step * SECOND + 7 * MICRO;
            let [here, there] = [0, node].map(|end| world.ends[end].clock.at(world.instant()));
            let ((shift, error), truth) = (alignment.at(there), i128::from(here) - i128::from(there));
            let off = (i128::from(shift) - truth).unsigned_abs();
            // Clocks are in whole nanoseconds.
            assert!(off <= u128::from(error) + 8, "node {node}, second {step}: {shift} ± {error}, and it is {truth}");
            errors.push(error);
        }
    }
    let largest = *errors.iter().max().unwrap();
    assert!(largest < 4 * 5_000 * MICRO, "{largest} ns");
}
