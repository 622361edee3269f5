//! The plan of a random session, made from its seed: the size of the tree, its commands, and the disruptions.

use std::ops::Range;

use super::super::random::Random;
use super::world::{MICRO, Nanos, SECOND, To};

/// Commands besides syncs. One worker of each node carries them out; its remaining workers reply at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Nothing,
    /// The nodes meet in the store.
    Meet,
    /// The worker of this node fails.
    Fail(usize),
}

/// A disruption of an end, or of its link to its parent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Disruption {
    /// The process ends.
    Kill(usize),
    /// The machine is frozen for this time.
    Freeze(usize, Nanos),
    /// The link is reset, which both ends notice.
    Reset(usize),
    /// The network drops all bytes of the link; neither end is told.
    HalfOpen(usize),
    /// The network drops the bytes of one direction.
    OneWay(usize, To),
    /// A node reports one of its own workers as lost.
    LoseWorker(usize),
}

/// A session, and its disruptions with their times.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) per_node: u32,
    pub(super) fan_out: usize,
    pub(super) latency: Range<Nanos>,
    /// Number of commands.
    pub(super) steps: u64,
    /// The longest pause between two of them.
    pub(super) pause: Nanos,
    /// Whether workers fail.
    pub(super) fails: bool,
    pub(super) disruptions: Vec<(Nanos, Disruption)>,
    /// The session ends without a wait for the disruptions.
    pub(super) ends_early: bool,
    /// The node that does not leave.
    pub(super) stuck: Option<Stuck>,
}

/// A node that does not leave when the session ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stuck {
    /// Its worker is inside a long function.
    Worker(usize),
    /// So is its worker, and its machine is frozen when the node is told to leave at once.
    Machine(usize),
}

impl Plan {
    pub(super) fn new(random: &mut Random) -> Self {
        let nodes = 1 + random.of(0..40) as usize;
        let mut plan = Self {
            nodes,
            per_node: 1 + random.of(0..3) as u32,
            fan_out: 1 + random.of(0..6) as usize,
            latency: if random.percent(50) { 10 * MICRO..50 * MICRO } else { 10 * MICRO..5000 * MICRO },
            steps: random.of(0..30),
            pause: [MICRO, 100_000 * MICRO, SECOND][random.of(0..3) as usize],
            fails: random.percent(40),
            disruptions: Vec::new(),
            ends_early: random.percent(30),
            stuck: None,
        };
        match random.of(0..10) {
            0..=6 => (0..random.of(1..4)).for_each(|_| plan.add_disruption(random)),
            7 => {
                let node = 1 + random.of(0..nodes as u64) as usize;
                plan.stuck = Some(if random.percent(50) { Stuck::Worker(node) } else { Stuck::Machine(node) });
            }
            _ => {}
        }
        plan
    }

    fn add_disruption(&mut self, random: &mut Random) {
        let node = 1 + random.of(0..self.nodes as u64) as usize;
        let when = if random.percent(30) { random.of(0..SECOND / 50) } else { random.of(0..8 * SECOND) };
        let disruption = match random.of(0..12) {
            0..=2 => Disruption::Kill(node),
            3 => Disruption::Kill(0),
            4..=5 => Disruption::Freeze(node, random.of(SECOND / 10..12 * SECOND)),
            6 => Disruption::Freeze(0, random.of(SECOND / 10..12 * SECOND)),
            7 => Disruption::Reset(node),
            8 => Disruption::HalfOpen(node),
            9 => Disruption::OneWay(node, if random.percent(50) { To::Child } else { To::Parent }),
            10 => Disruption::LoseWorker(node),
            _ => Disruption::Freeze(node, random.of(SECOND / 10..2 * SECOND)),
        };
        self.disruptions.push((when, disruption));
    }

    /// The total time of freezes.
    pub(super) fn frozen(&self) -> Nanos {
        let time = |(_, it): &(Nanos, Disruption)| if let Disruption::Freeze(_, time) = it { *time } else { 0 };
        self.disruptions.iter().map(time).sum()
    }
}
