//! Spinning before a rank sleeps on the futex.

use std::sync::OnceLock;
use std::thread;

/// Numbers of polls before a rank sleeps. Polling reads no clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinPolicy {
    /// Polls without giving up the processor.
    spins: u32,
    /// Polls after these, each followed by a yield.
    yields: u32,
}

impl SpinPolicy {
    /// The policy for `ranks` ranks on the processors that this process may use.
    ///
    /// If each rank has a processor, peers usually answer within nanoseconds. A peer may still share the processor of
    /// this rank, so later polls yield. A yield without another runnable thread costs a fraction of a microsecond.
    pub(crate) fn new(ranks: usize) -> Self {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors = *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from));
        match ranks <= processors {
            true => Self { spins: 200, yields: 500 },
            false => Self { spins: if processors > 1 { 64 } else { 0 }, yields: 500 },
        }
    }

    /// Polls `ready` until it returns a value. None after the last poll: the caller sleeps then.
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
