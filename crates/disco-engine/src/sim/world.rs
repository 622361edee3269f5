//! A session, its network and its machines.

use std::time::{Duration, Instant};

use disco_core::channel::Signal;

use super::controller::SimController;
use super::events::Events;
use super::host::Host;
use super::link::{Link, Side};
use super::plan::{Disruption, Plan};

/// A time or duration in microseconds of virtual time.
pub(super) type Micros = u64;
pub(super) const SECOND: Micros = 1_000_000;
/// The longest run; each wait must end before.
const TIME_LIMIT: Micros = 600 * SECOND;
/// Most events at one time, above which the run counts as a livelock.
const STANDSTILL: u64 = 100_000;

/// A session, its network and its machines.
pub(super) struct World {
    pub(super) now: Micros,
    pub(super) events: Events<What>,
    pub(super) links: Vec<Link>,
    pub(super) hosts: Vec<Host>,
    pub(super) controller: SimController,
    pub(super) plan: Plan,
    pub(super) backlog_limit: usize,
    pub(super) shows: bool,
    /// Number of handled events.
    pub(super) handled: u64,
    standstill: u64,
    /// Additional time for waits, since ends were frozen.
    pub(super) frozen: Micros,
    /// All ends are frozen until this time.
    pub(super) suspended: Micros,
    /// When the lane ended.
    pub(super) over: Micros,
}

/// A scheduled event.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// The next slice of a link arrives at an end.
    Arrive(usize, Side),
    /// A host is woken for a record in the ring.
    Woken(usize),
    /// The timer of a host, or of the controller (`None`).
    Timer(Option<usize>),
    /// The end of the freeze of a host, or of the controller (`None`).
    Thaw(Option<usize>),
    /// The end of the reactor thread's stall.
    EndStall,
    /// A host connects.
    Connect(usize),
    /// A worker has finished user code.
    Free(usize, usize),
    /// The deadline of a worker's request.
    Deadline(usize, usize, u64),
    /// The grace period of a host's workers is over.
    Grace(usize),
    /// The process of a host has ended.
    Ended(usize),
    /// The session's next step.
    Step,
    /// A thread that closes the lane polls it.
    PollClose,
    /// A signal of the session, from a separate thread.
    Signal(Signal),
    Disruption(Disruption),
    /// The deadline for the report of a host's loss.
    Noticed(usize),
}

impl World {
    pub(super) fn new(plan: Plan, seed: u64, shows: bool) -> Self {
        let events = Events::new(Duration::from_micros(1), seed);
        let controller = SimController::new(&plan, events.instant(0));
        let hosts = (0..plan.hosts).map(|index| Host::new(&plan, index)).collect();
        let mut world = Self {
            now: 0,
            events,
            links: Vec::new(),
            hosts,
            controller,
            backlog_limit: plan.backlog_limit,
            plan,
            shows,
            handled: 0,
            standstill: 0,
            frozen: 0,
            suspended: 0,
            over: 0,
        };
        world.begin();
        world
    }

    /// Runs until all connections and processes have ended.
    ///
    /// # Errors
    /// The violated invariant.
    pub(super) fn run(&mut self) -> Result<(), String> {
        while let Some((at, what)) = self.events.pop() {
            self.standstill = if at > self.now { 0 } else { self.standstill + 1 };
            self.now = at;
            self.handled += 1;
            if at > TIME_LIMIT || self.standstill > STANDSTILL {
                self.record_violation(
                    "the run does not end: the virtual time or the number of events at one time exceeds its limit",
                );
            }
            self.happen(what);
            if self.is_over() {
                break;
            }
        }
        self.check_end();
        self.events.broken.take().map_or(Ok(()), Err)
    }

    fn happen(&mut self, what: What) {
        let frozen = match &what {
            What::Timer(end) => Some(*end),
            What::Free(host, _) | What::Deadline(host, ..) | What::Grace(host) => Some(Some(*host)),
            What::Connect(host) | What::Woken(host) => Some(Some(*host)),
            What::Ended(_) => Some(None),
            What::Step | What::PollClose | What::Signal(_) => Some(None).filter(|_| self.controller.frozen),
            _ => None,
        };
        if let Some(end) = frozen.filter(|end| self.is_frozen(*end)) {
            return self.defer(end, what);
        }
        match what {
            What::Arrive(link, to) => self.arrive(link, to),
            What::Timer(None) => self.controller_timer(),
            What::Timer(Some(host)) => self.host_timer(host),
            What::Thaw(end) => self.thaw(end),
            What::EndStall => self.end_stall(),
            What::Woken(host) => self.run_worker(host, 0),
            What::Connect(host) => self.connect(host),
            What::Free(host, worker) => self.free(host, worker),
            What::Deadline(host, worker, question) => self.expire(host, worker, question),
            What::Grace(host) => self.end_grace(host),
            What::Ended(host) => self.controller_reaps(host),
            What::Step => self.step(),
            What::PollClose => self.poll_close(),
            What::Signal(signal) => self.signal(signal),
            What::Disruption(disruption) => self.disrupt(disruption),
            What::Noticed(host) => self.check_noticed(host),
        }
    }

    /// Schedules an event in `after` microseconds.
    pub(super) fn at(&mut self, after: Micros, what: What) {
        self.events.push(self.now + after, what);
    }

    pub(super) fn instant(&self) -> Instant {
        self.events.instant(self.now)
    }

    /// Microseconds until a time, rounded up.
    pub(super) fn until(&self, then: Instant) -> Micros {
        self.events.time_of(then).saturating_sub(self.now)
    }

    /// Records a violated invariant.
    pub(super) fn record_violation(&mut self, rule: impl Into<String>) {
        let rule = rule.into();
        self.show(|| format!("VIOLATED: {rule}"));
        self.events.record_violation(self.now, &rule);
    }

    pub(super) fn show(&self, text: impl FnOnce() -> String) {
        if self.shows {
            eprintln!("{:>12} {}", self.now, text());
        }
    }

    fn is_over(&self) -> bool {
        self.controller.is_over && self.has_session_ended() && self.hosts.iter().all(Host::is_done)
    }

    fn check_end(&mut self) {
        if self.events.broken.is_some() {
            return;
        }
        if !self.is_over() {
            let left = self.hosts.iter().filter(|host| !host.is_done()).count();
            let over = self.controller.is_over;
            return self.record_violation(format!(
                "deadlock: no events are left; controller ended: {over}, {left} hosts have not ended"
            ));
        }
        self.check_session();
        if let Some(link) = self.links.iter().position(|link| !link.is_over()) {
            self.record_violation(format!("link {link} of host {} is open at the end", self.links[link].host));
        }
    }
}
