//! What a seed stands for: how large the session is, what it does, and what is done to it.

use super::random::Random;
use super::world::{At, SECOND};

/// Sessions of 1000 with so many large arguments that these use up the credit of a lane.
const HEAVY: u64 = 2;

/// What members are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Nodes,
    Processes,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// A shutdown behind all commands, and workers have time.
    Shutdown,
    /// The program drops the session.
    Drop,
    /// The lane alone is dropped.
    DropLane,
}

/// Something that is done to an end or to a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Harm {
    /// The machine stops.
    Kill(usize),
    /// The node's program is started again while nodes join.
    Restart(usize),
    /// A host does nothing for so long, or the controller.
    Freeze(Option<usize>, At),
    /// Both ends see that the connection is cut.
    Reset(usize),
    /// Nothing passes any more, and neither end knows.
    HalfOpen(usize),
    /// Nothing passes in one direction any more.
    OneWay(usize, bool),
    /// A node reports one of its workers as lost.
    LoseWorker(usize),
    /// A worker process exits by itself, with this status.
    Exit(usize, u8),
    /// The reactor thread of the controller does nothing for so long, while other threads go on.
    Stall(At),
    /// All machines do nothing for so long.
    Suspend(At),
    /// The host sends bytes that are no message.
    Garbage(usize),
    /// The connection is 100 times slower from now on.
    Slow(usize),
    /// A connection that has not the token comes.
    Stranger(u8),
}

/// A session, and what happens to it.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) hosts: usize,
    pub(super) per_host: usize,
    /// Commands go through a ring in shared memory.
    pub(super) has_ring: bool,
    /// The session has started the processes of nodes.
    pub(super) has_children: bool,
    /// Commands that the session gives, at least.
    pub(super) steps: u64,
    /// Commands that are given at once, now and then.
    pub(super) burst: u64,
    /// KiB of the largest argument.
    pub(super) largest: u64,
    /// The longest pause between two of them.
    pub(super) pause: At,
    pub(super) failures: bool,
    pub(super) harms: Vec<(At, Harm)>,
    pub(super) ending: Ending,
    /// Bytes that a connection keeps for a reader that is slow.
    pub(super) backlog_limit: usize,
    /// Bits of hosts that say which node they are.
    named: u64,
    /// Hosts that are killed when all commands were given.
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
            harms: Vec::new(),
            ending: [Ending::Shutdown, Ending::Shutdown, Ending::Drop, Ending::DropLane][random.of(0..4) as usize],
            // Of a reader that has credit for large frames, more is kept.
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
            (0..random.of(1..4)).for_each(|_| plan.add_harm(random));
        }
        plan
    }

    /// So many nodes of 8 workers each, of which some are killed after `steps` commands.
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
            harms: Vec::new(),
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

    /// Whether the controller learns how the processes of hosts end.
    pub(super) fn has_processes(&self) -> bool {
        self.kind == Kind::Processes || self.has_children
    }

    /// Whether a host says which node it is; else it gets a place by its name.
    pub(super) fn names_itself(&self, host: usize) -> bool {
        self.named >> (host % 64) & 1 == 1
    }

    fn add_harm(&mut self, random: &mut Random) {
        let host = random.of(0..self.hosts as u64) as usize;
        let when = if random.percent(30) { random.of(0..500_000) } else { random.of(0..15 * SECOND) };
        let long = random.of(100_000..12 * SECOND);
        let harm = match random.of(0..15) {
            0 => Harm::Kill(host),
            1 if !self.has_processes() && when < 500_000 && self.names_itself(host) => Harm::Restart(host),
            2 => Harm::Freeze(Some(host), long),
            3 => Harm::Freeze(None, long),
            4 => Harm::Reset(host),
            // A Unix socket closes when one of its ends does.
            5 if self.kind == Kind::Nodes => Harm::HalfOpen(host),
            6 if self.kind == Kind::Nodes => Harm::OneWay(host, random.percent(50)),
            7 => Harm::Garbage(host),
            8 => Harm::Slow(host),
            9 if self.per_host > 1 => Harm::LoseWorker(host),
            10 if self.kind == Kind::Processes => Harm::Exit(host, random.of(0..3) as u8),
            11 => Harm::Stall(long),
            12 => Harm::Suspend(long),
            _ => Harm::Stranger(random.of(0..5) as u8),
        };
        self.harms.push((when, harm));
    }
}
