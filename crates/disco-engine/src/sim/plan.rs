//! The plan of a run, made from its seed: the size of the session, its commands, and the disruptions.

use super::random::Random;
use super::world::{Micros, SECOND};

/// Sessions of 1000 whose large arguments use up the credit of a lane.
const HEAVY: u64 = 2;

/// The kind of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Nodes,
    Processes,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// A shutdown after all commands, with time for the workers to end.
    Shutdown,
    /// The program drops the session.
    Drop,
    /// The program drops only the lane.
    DropLane,
}

/// A disruption of an end or of a link. Indices are those of hosts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Disruption {
    /// The process or machine ends at once.
    Kill(usize),
    /// The node's program is restarted while nodes join.
    Restart(usize),
    /// A host, or the controller (`None`), is frozen for this time.
    Freeze(Option<usize>, Micros),
    /// The connection is reset, which both ends notice.
    Reset(usize),
    /// The network drops all bytes of the connection; neither end is told.
    HalfOpen(usize),
    /// The network drops the bytes of one direction.
    OneWay(usize, bool),
    /// The network changes the length of a packet in one direction, so that its end seems to be late.
    Damaged(usize, bool),
    /// A node reports one of its workers as lost.
    LoseWorker(usize),
    /// A worker process exits by itself, with this status.
    Exit(usize, u8),
    /// The controller's reactor thread is stalled for this time, while other threads run.
    Stall(Micros),
    /// All machines are frozen for this time.
    Suspend(Micros),
    /// The host sends bytes that are not a message.
    Garbage(usize),
    /// The connection is 100 times slower from now on.
    Slow(usize),
    /// A connection without the token, or of another program, in one of several variants.
    Intruder(u8),
}

/// A session, and its disruptions.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) hosts: usize,
    pub(super) per_host: usize,
    /// Commands go through a ring in shared memory.
    pub(super) has_ring: bool,
    /// The session has started the processes of nodes.
    pub(super) has_children: bool,
    /// Least number of commands that the session submits.
    pub(super) steps: u64,
    /// Commands of a burst.
    pub(super) burst: u64,
    /// KiB of the largest argument.
    pub(super) largest: u64,
    /// The longest pause between two of them.
    pub(super) pause: Micros,
    pub(super) failures: bool,
    pub(super) disruptions: Vec<(Micros, Disruption)>,
    pub(super) ending: Ending,
    /// Unsent bytes that a connection may have.
    pub(super) backlog_limit: usize,
    /// A bit for each host that asks for its node number.
    named: u64,
    /// Hosts that are killed after all commands were submitted.
    pub(super) losses: usize,
}

impl Plan {
    pub(super) fn new(random: &mut Random) -> Self {
        let kind = if random.percent(75) { Kind::Nodes } else { Kind::Processes };
        let is_heavy = random.of(0..1000) < HEAVY;
        let hosts = if is_heavy { random.of(1..3) } else { random.of(1..5) } as usize;
        let is_flood = random.percent(2);
        let mut plan = Self {
            kind,
            hosts,
            per_host: if kind == Kind::Nodes { random.of(1..4) as usize } else { 1 },
            has_ring: kind == Kind::Processes && random.percent(60),
            has_children: kind == Kind::Nodes && random.percent(40),
            steps: random.of(1..30),
            burst: if is_heavy {
                40
            } else if is_flood {
                2500
            } else {
                random.of(1..60)
            },
            largest: if is_heavy { 4 << 10 } else { 300 },
            pause: if is_heavy { 1_000 } else { [1_000, 100_000, 2 * SECOND][random.of(0..3) as usize] },
            failures: random.percent(50),
            disruptions: Vec::new(),
            ending: [Ending::Shutdown, Ending::Shutdown, Ending::Drop, Ending::DropLane][random.of(0..4) as usize],
            // Large frames within the credit must fit.
            backlog_limit: if is_heavy {
                256 << 20
            } else if random.percent(5) {
                1 << 20
            } else {
                64 << 20
            },
            named: random.next(),
            losses: 0,
        };
        if random.percent(60) {
            (0..random.of(1..4)).for_each(|_| plan.add_disruption(random));
        }
        plan
    }

    /// `hosts` nodes of 8 workers each, of which `losses` are killed after `steps` commands.
    pub(super) fn large(hosts: usize, steps: u64, losses: usize) -> Self {
        Self {
            kind: Kind::Nodes,
            hosts,
            per_host: 8,
            has_ring: false,
            has_children: false,
            steps,
            burst: 1_000,
            largest: 300,
            pause: 0,
            failures: false,
            disruptions: Vec::new(),
            ending: Ending::Shutdown,
            backlog_limit: 64 << 20,
            named: u64::MAX,
            losses,
        }
    }

    /// Workers in all.
    pub(super) fn workers(&self) -> usize {
        self.hosts * self.per_host
    }

    /// Whether the controller watches the processes of hosts.
    pub(super) fn has_processes(&self) -> bool {
        self.kind == Kind::Processes || self.has_children
    }

    /// Whether a host asks for its node number; else it gets a place by its name.
    pub(super) fn names_itself(&self, host: usize) -> bool {
        self.named >> (host % 64) & 1 == 1
    }

    fn add_disruption(&mut self, random: &mut Random) {
        let host = random.of(0..self.hosts as u64) as usize;
        let when = if random.percent(30) { random.of(0..500_000) } else { random.of(0..15 * SECOND) };
        let long = random.of(100_000..12 * SECOND);
        let disruption = match random.of(0..16) {
            0 => Disruption::Kill(host),
            1 if !self.has_processes() && when < 500_000 && self.names_itself(host) => Disruption::Restart(host),
            2 => Disruption::Freeze(Some(host), long),
            3 => Disruption::Freeze(None, long),
            4 => Disruption::Reset(host),
            // A Unix socket has no half-open state.
            5 if self.kind == Kind::Nodes => Disruption::HalfOpen(host),
            6 if self.kind == Kind::Nodes => Disruption::OneWay(host, random.percent(50)),
            7 => Disruption::Garbage(host),
            8 => Disruption::Slow(host),
            9 if self.per_host > 1 => Disruption::LoseWorker(host),
            10 if self.kind == Kind::Processes => Disruption::Exit(host, random.of(0..3) as u8),
            11 => Disruption::Stall(long),
            12 => Disruption::Suspend(long),
            // No network is below a Unix socket.
            13 if self.kind == Kind::Nodes => Disruption::Damaged(host, random.percent(50)),
            _ => Disruption::Intruder(random.of(0..5) as u8),
        };
        self.disruptions.push((when, disruption));
    }
}
