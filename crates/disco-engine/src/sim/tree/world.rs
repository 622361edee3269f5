//! The virtual clock, the links, and the events of all ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::error::Loss;
use disco_core::{Error, Value, WorkerId, WorkerRange, WorkerSet};

use super::super::events::Events;
use super::super::phase::Phase;
use super::costs::Costs;
use super::disruption::Expected;
use super::end::{End, Lower};
use super::jobs::Session;
use super::plan::Disruption;
use crate::clock::MachineClock;
use crate::controller::Event;
use crate::member::serving;

/// A time or duration in nanoseconds of virtual time.
pub(super) type Nanos = u64;
pub(super) const MICRO: Nanos = 1000;
pub(super) const SECOND: Nanos = 1_000_000_000;
/// Longest measured time of one step of an engine that is believed: this process may be preempted.
const MAX_STEP: Nanos = 2_000_000;
/// Time for which a thread polls after an event before it sleeps.
const AWAKE: Nanos = 100 * MICRO;

/// A session, its nodes and its network.
pub(super) struct World {
    pub(super) events: Events<Entry>,
    /// The time of the event that is handled.
    pub(super) now: Nanos,
    /// The time of the CPU that handles it.
    pub(super) clock: Nanos,
    /// The latency of a message.
    latency: Range<Nanos>,
    pub(super) costs: Costs,
    pub(super) ends: Vec<End>,
    pub(super) links: Vec<Link>,
    pub(super) per_node: u32,
    pub(super) session: Session,
    pub(super) expected: Expected,
    /// The messages that the controller has received.
    pub(super) synced: Option<(u64, WorkerSet)>,
    pub(super) lost: Vec<(Nanos, Loss)>,
    pub(super) left: WorkerSet,
    pub(super) recordings: BTreeMap<WorkerId, Arc<[u8]>>,
    /// The workers that nodes were asked to replace, and whose nodes have not received that.
    pub(super) asked: Vec<WorkerId>,
    /// Number of nodes that have received the last command, and number of nodes that have received an abort or have
    /// ended.
    pub(super) reached: usize,
    pub(super) stopped: usize,
}

/// A connection of a node to its parent. Messages of one direction keep their order.
pub(super) struct Link {
    pub(super) child: usize,
    pub(super) parent: usize,
    /// When the last message arrives: at the child, at the parent.
    arrival: [Nanos; 2],
    pub(super) is_open: [bool; 2],
    /// The network drops the messages to the child, and those to the parent.
    pub(super) drops: [bool; 2],
}

/// The end of a link to which a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Child,
    Parent,
}

/// A scheduled event.
#[derive(Debug)]
pub(super) enum Entry {
    /// Bytes arrive; `None`: the other end has closed the link.
    Arrive(usize, To, Option<Arc<[u8]>>),
    /// A timer: of a node's upper side (false), or of the side to its children.
    Timer(usize, bool),
    /// A node connects to another end.
    Connect(usize, usize),
    /// The own workers of a node reply to a command.
    Reply(usize, u64),
    /// An end dies.
    Kill(usize),
    /// A link was reset, as one end of it learns.
    Reset(usize, To),
    /// Connections wait for an end that was frozen.
    Accept(usize),
    /// A node waits no longer for its own workers.
    Patience(usize),
    /// A disruption.
    Disrupt(Disruption),
}

/// The clock of an end's machine: each began at another time, and runs at another rate.
fn clock(end: usize, base: Instant) -> MachineClock {
    let (started, rate) = ((end as u64 * 7_919) % 100 * SECOND + SECOND, 1_000_000 + (end as u64 * 37) % 201 - 100);
    MachineClock::new(move |at| {
        let elapsed = at.saturating_duration_since(base).as_nanos() as u64;
        started + (u128::from(elapsed) * u128::from(rate) / 1_000_000) as u64
    })
}

impl World {
    /// `nodes` nodes of `per_node` workers each, of which an end has at most `fan_out` as children.
    pub(super) fn new(
        (nodes, per_node, fan_out): (usize, u32, usize),
        latency: Range<Nanos>,
        costs: Costs,
        seed: u64,
    ) -> Self {
        let events = Events::new(Duration::from_nanos(1), seed);
        let base = events.instant(0);
        let mut ends: Vec<End> = (0..=nodes).map(|end| End::new(clock(end, base))).collect();
        let workers = WorkerRange::new(0..nodes as u32 * per_node);
        let engine = super::lower::controller(nodes, per_node, fan_out, costs.are_measured, base);
        ends[0].lower = Some(Lower::new(engine.with_clock(ends[0].clock.clone())));
        ends[0].phase = Phase::Done;
        let mut world = Self {
            events,
            now: 0,
            clock: 0,
            latency,
            costs,
            ends,
            links: Vec::new(),
            per_node,
            session: Session::default(),
            expected: Expected::default(),
            synced: None,
            lost: Vec::new(),
            left: WorkerSet::new(workers),
            recordings: BTreeMap::new(),
            asked: Vec::new(),
            reached: 0,
            stopped: 0,
        };
        (1..=nodes).for_each(|end| world.at(0, Entry::Connect(end, 0)));
        world
    }

    /// Handles events until `done`, or until none are left. Returns the time.
    pub(super) fn run(&mut self, mut done: impl FnMut(&Self) -> bool) -> Nanos {
        while !done(self)
            && let Some((at, entry)) = self.events.pop()
        {
            self.now = at;
            self.happen(entry);
        }
        self.clock
    }

    fn happen(&mut self, entry: Entry) {
        let end = match &entry {
            Entry::Arrive(link, to, _) if self.links[*link].drops[*to as usize] => return,
            Entry::Arrive(link, To::Child, _) | Entry::Reset(link, To::Child) => self.links[*link].child,
            Entry::Arrive(link, To::Parent, _) | Entry::Reset(link, To::Parent) => self.links[*link].parent,
            Entry::Disrupt(disruption) => return self.disrupt(*disruption),
            Entry::Timer(end, _) | Entry::Connect(end, _) | Entry::Reply(end, _) => *end,
            Entry::Accept(end) | Entry::Patience(end) | Entry::Kill(end) => *end,
        };
        if self.ends[end].is_dead {
            return;
        }
        if self.ends[end].frozen_until > self.now && !matches!(entry, Entry::Kill(_)) {
            return self.at(self.ends[end].frozen_until, entry);
        }
        self.turn(end, |world| match entry {
            Entry::Arrive(link, to, bytes) => {
                world.clock += world.costs.receive;
                match (to, bytes) {
                    (To::Child, Some(bytes)) => world.upper_receives(end, link, &bytes),
                    (To::Child, None) => world.upper_is_cut(end, link),
                    (To::Parent, Some(bytes)) => world.lower_receives(end, link, &bytes),
                    (To::Parent, None) => world.lower_is_cut(end, link),
                }
            }
            Entry::Timer(end, false) => {
                world.ends[end].timers[0] = None;
                world.upper(end, serving::Event::Timeout);
            }
            Entry::Timer(end, true) => {
                world.ends[end].timers[1] = None;
                world.lower(end, Event::Timer);
            }
            Entry::Connect(child, parent) => world.connect(child, parent),
            Entry::Reply(end, seq) => world.own_workers_reply(end, seq),
            Entry::Reset(link, to) => world.is_reset(link, to),
            Entry::Accept(end) => world.accept(end),
            Entry::Patience(end) => world.tell_of_end(end),
            Entry::Kill(end) => world.die(end),
            Entry::Disrupt(disruption) => world.disrupt(disruption),
        });
    }

    /// Acts on an end, once its CPU is free.
    pub(super) fn turn<T>(&mut self, end: usize, act: impl FnOnce(&mut Self) -> T) -> T {
        let free_at = self.ends[end].free_at;
        let sleeps = self.now > free_at + AWAKE;
        self.clock = self.now.max(free_at) + if sleeps { self.costs.wake } else { 0 };
        let result = act(self);
        self.ends[end].free_at = self.clock;
        result
    }

    /// Adds the time that `step` takes, if times are measured.
    pub(super) fn measure<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> T {
        if !self.costs.are_measured {
            return step(self);
        }
        let start = Instant::now();
        let result = step(self);
        self.clock += (start.elapsed().as_nanos() as Nanos).min(MAX_STEP);
        result
    }

    pub(super) fn at(&mut self, time: Nanos, entry: Entry) {
        self.events.push(time, entry);
    }

    pub(super) fn instant(&self) -> Instant {
        self.events.instant(self.clock)
    }

    /// The virtual time of an instant.
    pub(super) fn time_of(&self, instant: Instant) -> Nanos {
        self.events.time_of(instant)
    }

    /// Sets a timer of an end, unless an earlier one is set.
    pub(super) fn set_timer(&mut self, end: usize, is_lower: bool, at: Option<Instant>) {
        let Some(at) = at else { return };
        let at = self.time_of(at).max(self.clock);
        let timer = &mut self.ends[end].timers[usize::from(is_lower)];
        if timer.is_none_or(|timer| at < timer) {
            *timer = Some(at);
            self.at(at, Entry::Timer(end, is_lower));
        }
    }

    /// Sends bytes, or closes the direction.
    pub(super) fn send(&mut self, link: usize, to: To, bytes: Option<Arc<[u8]>>) {
        if !std::mem::replace(&mut self.links[link].is_open[to as usize], bytes.is_some()) {
            self.links[link].is_open[to as usize] = false;
            return;
        }
        self.clock += self.costs.send;
        let late = self.latency.start > 0 && self.events.random.percent(1) && !self.costs.are_measured;
        let latency = self.events.random.of(self.latency.clone()) * if late { 50 } else { 1 };
        let arrival = &mut self.links[link].arrival[to as usize];
        *arrival = (*arrival).max(self.clock + latency);
        let at = *arrival;
        self.at(at, Entry::Arrive(link, to, bytes));
    }

    pub(super) fn connect(&mut self, child: usize, parent: usize) {
        let link = self.links.len();
        self.links.push(Link { child, parent, arrival: [0; 2], is_open: [true; 2], drops: [false; 2] });
        (self.ends[child].link, self.ends[child].phase) = (Some(link), Phase::Proving(None));
        let has_ended = parent > 0 && self.ends[parent].phase.is_done();
        if self.ends[parent].is_dead || has_ended {
            return self.send(link, To::Child, None);
        }
        match &mut self.ends[parent].lower {
            Some(lower) => lower.backlog.push_back(link),
            // The parent listens, and is not assigned yet.
            None => {
                self.links.pop();
                self.ends[child].link = None;
                let retry = self.clock + 100 * MICRO;
                return self.at(retry, Entry::Connect(child, parent));
            }
        }
        match self.ends[parent].frozen_until {
            until if until > self.now => self.at(until, Entry::Accept(parent)),
            _ => self.accept(parent),
        }
    }

    /// The process of an end dies: its links are closed.
    fn die(&mut self, end: usize) {
        self.ends[end].is_dead = true;
        self.stops(end);
        let links: Vec<usize> = (0..self.links.len())
            .filter(|link| {
                let link = &self.links[*link];
                link.child == end || link.parent == end
            })
            .collect();
        for link in links {
            let to = if self.links[link].child == end { To::Parent } else { To::Child };
            self.send(link, to, None);
        }
    }

    /// An abort has reached a node, or it ends.
    pub(super) fn stops(&mut self, end: usize) {
        if self.ends[end].stopped_at.is_none() {
            self.ends[end].stopped_at = Some(self.clock);
            self.stopped += 1;
        }
    }

    pub(super) fn record_violation(&mut self, rule: impl Into<String>) {
        self.events.record_violation(self.clock, &rule.into());
    }

    /// The controller gets replies without a value.
    pub(super) fn controller_gets(&mut self, workers: WorkerRange, seq: u64) {
        let new = match &mut self.synced {
            Some((expected, replied)) if *expected == seq => replied.insert(workers),
            _ => 0,
        };
        if new != workers.len() {
            self.record_violation(format!("{workers} have replied to {seq} twice or unasked"));
        }
    }

    pub(super) fn controller_loses(&mut self, why: Error) {
        let Error::Lost(loss) = &why else { return self.record_violation(format!("a loss without a peer: {why}")) };
        self.lost.push((self.clock, Loss::clone(loss)));
        if self.lost.len() == 1 {
            self.lose_session(&why);
        }
    }

    /// Whether all replies to the last sync of all have come; the session then makes its list of replies.
    pub(super) fn is_synced(&self) -> bool {
        self.synced.as_ref().is_some_and(|(_, replied)| replied.is_full())
    }

    /// Makes the list of all replies, as the session does.
    pub(super) fn collect_replies(&mut self) -> Nanos {
        let count = self.left.missing().count();
        self.measure(|_| std::hint::black_box(vec![Ok::<Value, ()>(Value::None); count]));
        self.clock
    }
}
