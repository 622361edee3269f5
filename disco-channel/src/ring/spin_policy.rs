//! How long a reader spins and yields before it sleeps.

#[cfg(not(loom))]
use std::time::{Duration, Instant};

#[cfg(not(loom))]
use disco_core::{Command, WorkerId, env, processors};

use super::sync::{hint, thread};

/// How long a reader polls without back-off after its reply: the time that the caller takes to send its next command.
#[cfg(not(loom))]
const EAGER_SECONDS: f64 = 0.6e-6;
/// Polls of a wait of a given time before it yields between polls.
#[cfg(not(loom))]
const POLLS_BEFORE_YIELD: u32 = 64;

/// Polling before sleep, with exponential back-off. Each poll takes the cache line from the writer, so a reader that
/// polls without a pause would slow the writer down and get items one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// Polls with one short pause before each, in [`Expect::Soon`].
    eager: u32,
    /// Pause instructions before the first poll; doubles with each poll.
    spins: u32,
    /// Polls that spin.
    rounds: u32,
    /// Polls after these, with a yield before each.
    yields: u32,
    /// The time to poll in place of these numbers, as the environment says.
    #[cfg(not(loom))]
    limit: Option<Duration>,
    /// Number of readers, and of neighbours that wait as they do.
    readers: u32,
    /// Whether each reader has a processor.
    has_processors: bool,
}

/// A reader's expectation of its next item.
#[cfg_attr(loom, allow(dead_code, reason = "models do not spin"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Nothing.
    #[default]
    Unknown,
    /// The writer waits for this reader alone, so its next item may follow at once.
    Soon,
    /// Other readers may be behind, and need the processor.
    AfterOthers,
    /// The last items, so many in a row, were for other readers.
    Bystander(u32),
}

#[cfg(not(loom))]
impl Expect {
    /// The expectation of worker `here` after a command; `self` was the one before it.
    pub(crate) fn after(self, command: &Command, here: WorkerId) -> Self {
        match command {
            Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. }
                if *worker == here =>
            {
                Self::Soon
            }
            Command::SyncWorker { .. } | Command::DebugGet { .. } | Command::DebugSet { .. } => match self {
                Self::Bystander(in_a_row) => Self::Bystander(in_a_row.saturating_add(1)),
                _ => Self::Bystander(1),
            },
            Command::SyncAll | Command::GetAll { .. } => Self::AfterOthers,
            command if command.answers() == Some(here) => Self::Soon,
            _ => Self::Unknown,
        }
    }
}

impl SpinPolicy {
    /// Polls `is_over`, spinning and then yielding. Returns whether it held; if not, the caller sleeps.
    pub(crate) fn spin_until(self, expect: Expect, mut is_over: impl FnMut() -> bool) -> bool {
        #[cfg(not(loom))]
        if let Some(limit) = self.limit {
            return poll_for(limit, is_over);
        }
        let (eager, rounds, yields) = match expect {
            Expect::Unknown => (0, self.rounds, self.yields),
            Expect::AfterOthers if !self.has_processors => (0, 0, self.yields),
            // Yields soon: the writer may wait for this processor.
            Expect::Soon | Expect::AfterOthers => (self.eager, 0, 4 * self.yields),
            // A writer that addresses one reader after the other comes to this reader within a round. After a round, the
            // yields are halved with each item: the items are for one reader, and awake bystanders slow that reader down.
            Expect::Bystander(in_a_row) => (0, 0, self.yields.unbounded_shr(in_a_row.saturating_sub(self.readers))),
        };
        for _ in 0..eager {
            hint::spin_loop();
            if is_over() {
                return true;
            }
        }
        for round in 0..rounds {
            (0..self.spins << round).for_each(|_| hint::spin_loop());
            if is_over() {
                return true;
            }
        }
        (0..yields).any(|_| {
            thread::yield_now();
            is_over()
        })
    }
}

/// Polls `is_over` for `limit`, and yields between polls after the first ones.
#[cfg(not(loom))]
fn poll_for(limit: Duration, mut is_over: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut polls = 0;
    while start.elapsed() < limit {
        if is_over() {
            return true;
        }
        polls += 1;
        if polls > POLLS_BEFORE_YIELD { thread::yield_now() } else { hint::spin_loop() }
    }
    false
}

#[cfg(not(loom))]
impl SpinPolicy {
    /// The policy for `readers` readers on the processors that this process may use. If each reader has a processor,
    /// spinning lasts about as long as the wake-up of an idle one. Otherwise readers yield at once: another reader or
    /// the writer needs the processor, and more items have come by the time this reader runs again.
    pub(crate) fn new(readers: usize) -> Self {
        let processors = processors();
        let (eager, first, rounds) = match processors {
            1 => (0.0, 0.0, 0),
            _ if readers < processors => (EAGER_SECONDS, 1.5e-6, 4),
            _ => (EAGER_SECONDS, 0.0, 0),
        };
        let pause = pause();
        let spins = (first / pause).ceil().clamp(1.0, 1024.0) as u32;
        let eager = (eager / pause) as u32;
        let (readers, has_processors) = (readers as u32, readers < processors);
        Self { eager, spins, rounds, yields: 8, limit: env::spin_time(), readers, has_processors }
    }
}

/// Duration of one pause instruction in seconds: 10 to 60 ns, depending on the processor.
#[cfg(not(loom))]
fn pause() -> f64 {
    const PAUSES: u32 = 64;
    let measure = || {
        let start = std::time::Instant::now();
        (0..PAUSES).for_each(|_| std::hint::spin_loop());
        start.elapsed().as_secs_f64() / f64::from(PAUSES)
    };
    // The minimum of several measurements, since this thread may be interrupted.
    (0..4).map(|_| measure()).fold(f64::INFINITY, f64::min).max(1e-9)
}

#[cfg(loom)]
impl SpinPolicy {
    /// None: a model looks at each wait once.
    pub(crate) fn new(_: usize) -> Self {
        Self { eager: 0, spins: 0, rounds: 0, yields: 0, readers: 0, has_processors: false }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_more_items_than_readers_have_passed_over_yields_less_and_then_not_at_all() {
        let policy =
            SpinPolicy { eager: 5, spins: 1, rounds: 0, yields: 8, limit: None, readers: 3, has_processors: false };
        let polls = |expect| {
            let mut polls = 0;
            let is_over = policy.spin_until(expect, || {
                polls += 1;
                false
            });
            assert!(!is_over);
            polls
        };
        let for_other = Command::SyncWorker { worker: WorkerId::new(1) };
        let mut expect = Expect::Unknown;
        let passed_over = [(); 8].map(|()| {
            expect = expect.after(&for_other, WorkerId::new(0));
            polls(expect)
        });
        assert_eq!(passed_over, [8, 8, 8, 4, 2, 1, 0, 0]);
        expect = expect.after(&Command::SyncAll, WorkerId::new(0)).after(&for_other, WorkerId::new(0));
        assert_eq!(polls(expect), 8, "another command ends the series");
    }
}
