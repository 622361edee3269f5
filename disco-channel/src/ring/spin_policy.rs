//! How long a reader spins and yields before it sleeps.

use super::sync::{hint, thread};

/// Polling before sleep, with exponential back-off. Each poll takes the cache line from the writer, so a reader that
/// polls without a pause would slow the writer down and get items one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// Pause instructions before the first poll; doubles with each poll.
    spins: u32,
    /// Polls that spin.
    rounds: u32,
    /// Polls after these, with a yield before each.
    yields: u32,
}

impl SpinPolicy {
    /// Polls `is_over`, spinning and then yielding. Returns whether it held; if not, the caller sleeps.
    pub(crate) fn spin_until(self, mut is_over: impl FnMut() -> bool) -> bool {
        for round in 0..self.rounds {
            (0..self.spins << round).for_each(|_| hint::spin_loop());
            if is_over() {
                return true;
            }
        }
        (0..self.yields).any(|_| {
            thread::yield_now();
            is_over()
        })
    }
}

#[cfg(not(loom))]
impl SpinPolicy {
    /// The policy for `readers` readers on the processors that this process may use. On one processor readers do not
    /// spin, since the writer could not run meanwhile. If each reader has a processor, spinning lasts about as long as
    /// the wake-up of an idle one.
    pub(crate) fn new(readers: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (first, rounds) = match processors {
            1 => (0.0, 0),
            _ if readers < processors => (1.5e-6, 4),
            _ => (0.2e-6, 3),
        };
        let spins = (first / pause()).ceil().clamp(1.0, 1024.0) as u32;
        Self { spins, rounds, yields: 8 }
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
        Self { spins: 0, rounds: 0, yields: 0 }
    }
}
