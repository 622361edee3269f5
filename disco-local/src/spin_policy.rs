//! How long a rank stays awake for its peers.

use std::sync::OnceLock;
use std::thread;

/// Looks at what is awaited before a rank sleeps. None of them reads a clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// Looks of one that keeps its processor.
    spins: u32,
    /// Looks of one that lets others run in between.
    yields: u32,
}

impl SpinPolicy {
    /// What pays for so many ranks on the processors that this process may use. Where each has one, a peer is nanoseconds
    /// away, unless it does something else or the scheduler has put both on one: then each look past the first few must
    /// let it run. A yield to nobody costs a fraction of a microsecond.
    pub(crate) fn new(ranks: usize) -> Self {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors = *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from));
        match ranks <= processors {
            true => Self { spins: 200, yields: 500 },
            false => Self { spins: if processors > 1 { 64 } else { 0 }, yields: 500 },
        }
    }

    /// Looks until there is something or it would be better to sleep.
    pub(crate) fn poll<T>(self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        for _ in 0..self.spins {
            if let Some(found) = ready() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        for _ in 0..self.yields {
            if let Some(found) = ready() {
                return Some(found);
            }
            thread::yield_now();
        }
        ready()
    }
}
