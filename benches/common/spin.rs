//! A barrier of threads that only poll cache lines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, available_parallelism};

/// A value on its own pair of cache lines.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Line(pub(crate) AtomicU64);

/// A barrier of spinning threads. Each thread counts on its own line.
pub(crate) struct Barrier {
    lines: Vec<Line>,
    crowded: bool,
}

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { lines: (0..threads).map(|_| Line::default()).collect(), crowded: threads > processors }
    }

    /// Waits until all threads have reached `step`, which increases from call to call.
    pub(crate) fn wait(&self, me: usize, step: u64) {
        self.lines[me].0.store(step, Ordering::Release);
        for line in &self.lines {
            spin_until(self.crowded, || line.0.load(Ordering::Acquire) >= step);
        }
    }
}

/// Polls until `ready`. With more threads than CPUs (`crowded`), yields after each poll.
fn spin_until(crowded: bool, ready: impl Fn() -> bool) {
    while !ready() {
        if crowded { thread::yield_now() } else { std::hint::spin_loop() }
    }
}
