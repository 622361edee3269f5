//! How long a reader stays awake for an item.

use super::sync::{hint, thread};

/// Looks at the ring before a reader sleeps. Each look takes the writer's line away from it, so that a reader that looks
/// all the time gets items one by one, at several times the price: it pauses in between, twice as long from look to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Pause instructions before the first look.
    spins: u32,
    /// Looks of one that keeps its processor.
    rounds: u32,
    /// Looks of one that lets others run in between.
    yields: u32,
}

impl Patience {
    /// Looks until `is_over` holds or it would be better to sleep. Returns whether it holds.
    pub(crate) fn look(self, mut is_over: impl FnMut() -> bool) -> bool {
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
impl Patience {
    /// What pays for so many readers on the processors that this process may use. Spinning is for a writer that runs at
    /// the same time. Where every reader has a processor it lasts about as long as it takes to wake one that idles.
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

/// Seconds that one pause instruction takes: 10 to 60 ns, depending on the processor.
#[cfg(not(loom))]
fn pause() -> f64 {
    const PAUSES: u32 = 64;
    let measure = || {
        let start = std::time::Instant::now();
        (0..PAUSES).for_each(|_| std::hint::spin_loop());
        start.elapsed().as_secs_f64() / f64::from(PAUSES)
    };
    // The shortest of several, for this thread may be interrupted.
    (0..4).map(|_| measure()).fold(f64::INFINITY, f64::min).max(1e-9)
}

#[cfg(loom)]
impl Patience {
    /// None: a model looks at each wait once.
    pub(crate) fn new(_: usize) -> Self {
        Self { spins: 0, rounds: 0, yields: 0 }
    }
}
