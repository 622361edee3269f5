//! Checks trees under random latencies and deaths.

use disco_core::error::LostPeer;
use disco_core::{Command, Frame, RegisterId, WorkerSet};

use super::super::random::Random;
use super::costs::Costs;
use super::end::End;
use super::lower;
use super::world::{Entry, MICRO, Nanos, SECOND, World};
use crate::engine::controller::Event;

/// Sessions of one run.
const RUNS: u64 = 500;
/// Time within which a loss must be reported, and a session must end.
const LIMIT: Nanos = 40 * SECOND;

impl World {
    /// Whether the session has started.
    ///
    /// # Errors
    /// The start has failed, or does not end.
    pub(super) fn start(&mut self) -> Result<Nanos, String> {
        let at = self.run(|world| world.ends[0].lower.as_ref().is_some_and(|lower| lower.started.is_some()));
        let started = self.ends[0].lower.as_ref().and_then(|lower| lower.started.as_ref());
        match (self.broken.clone(), lower::failure(started), started) {
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

    /// Ends the session, and waits until all ends are over.
    pub(super) fn finish(&mut self) -> Nanos {
        let until = self.now + LIMIT;
        self.tell(Event::Close(std::time::Duration::from_secs(10)));
        self.run(|world| world.ends.iter().all(End::is_over) || world.now > until)
    }
}

fn call() -> Command {
    Command::KillReg { register: RegisterId::new(1) }
}

/// Runs a session that a seed describes.
fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let nodes = 1 + random.of(0..40) as usize;
    let (per_node, fan_out) = (1 + random.of(0..3) as u32, 1 + random.of(0..6) as usize);
    let latency = if random.percent(50) { 10 * MICRO..50 * MICRO } else { 10 * MICRO..5000 * MICRO };
    let mut world = World::new((nodes, per_node, fan_out), latency, Costs::default(), random.next());
    let about = format!("{nodes} nodes of {per_node}, fan-out {fan_out}");
    world.start().map_err(|why| format!("{about}: {why}"))?;
    let mut seq = 0;
    for _ in 0..random.of(0..30) {
        seq += 1;
        let is_sync = random.percent(30);
        world.command(seq, if is_sync { Command::SyncAll } else { call() });
        if is_sync {
            world.run(World::is_synced);
            if !world.is_synced() {
                return Err(format!("{about}: sync {seq} does not end: {:?}", world.broken));
            }
        }
    }
    let died = random.percent(60).then(|| 1 + random.of(0..nodes as u64) as usize);
    match died {
        Some(node) => {
            // With commands in flight.
            (0..3).for_each(|_| {
                seq += 1;
                world.command(seq, call());
            });
            let at = world.clock + random.of(0..2_000_000);
            world.at(at, Entry::Kill(node));
            let until = at + LIMIT;
            world.run(|world| !world.lost.is_empty() || world.now > until);
            let Some((_, loss)) = world.lost.first().cloned() else {
                return Err(format!("{about}: the death of node {node} is not reported: {:?}", world.broken));
            };
            let LostPeer::Node { node: lost, behind, workers } = &loss.peer else {
                return Err(format!("{about}: {loss}"));
            };
            let (number, count) = (lost.number as usize, workers.len() / per_node as usize);
            if (number, *behind as usize + 1, lost.name.contains("host")) != (node, count, true) {
                return Err(format!("{about}: node {node} has died, and the error is: {loss}"));
            }
            world.tell(Event::Signal(disco_core::channel::Signal::Abort { epoch: 0, cause: "a loss".into() }));
        }
        None => {
            world.command(seq + 1, Command::Shutdown);
        }
    }
    if died.is_some() {
        world.tell(Event::Signal(disco_core::channel::Signal::Shutdown));
    }
    world.finish();
    if let Some(end) = world.ends.iter().position(|end| !end.is_over()) {
        return Err(format!("{about}: end {end} does not end; {died:?} has died; {:?}", world.broken));
    }
    if died.is_none() && !world.left.is_full() {
        let missing: Vec<_> = world.left.missing().collect();
        return Err(format!("{about}: these workers have not left: {missing:?}"));
    }
    world.broken.map_or(Ok(()), |broken| Err(format!("{about}: {broken}")))
}

#[test]
fn trees_keep_order_and_replies_and_name_the_dead() {
    if let Some(seed) = std::env::var("DISCO_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed).unwrap();
    }
    let runs = std::env::var("DISCO_SIM_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let broken: Vec<String> = (0..runs.min(RUNS))
        .filter_map(|seed| run(seed).err().map(|why| format!("DISCO_SEED={seed}: {why}")))
        .take(5)
        .collect();
    assert!(broken.is_empty(), "trees broke a rule:\n{}", broken.join("\n"));
}
