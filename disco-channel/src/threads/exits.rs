//! Tracks which worker threads have ended.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use disco_core::sync;
use event_listener::{Event, Listener};

/// Which threads of a [`WorkerSet`](super::worker_set::WorkerSet) have ended, and until when a caller waits for them.
#[derive(Debug)]
pub(super) struct Exits {
    /// Whether the end of each thread is expected.
    expected: Box<[AtomicBool]>,
    left: Box<[AtomicBool]>,
    /// The earliest deadline of concurrent callers.
    limit: Mutex<Option<Instant>>,
    changed: Event,
}

impl Exits {
    /// No worker has left.
    pub(super) fn new(workers: usize) -> Self {
        let flags = || (0..workers).map(|_| AtomicBool::new(false)).collect();
        Self { expected: flags(), left: flags(), limit: Mutex::default(), changed: Event::new() }
    }

    /// A worker that ends from now on is not lost.
    pub(super) fn expect_all(&self) {
        (0..self.expected.len()).for_each(|index| self.expect(index));
    }

    /// If the worker with this index ends from now on, it is not lost.
    pub(super) fn expect(&self, index: usize) {
        self.expected[index].store(true, Ordering::Release);
    }

    /// Whether a worker that ends now has left, and is not lost.
    pub(super) fn is_expected(&self, index: usize) -> bool {
        self.expected[index].load(Ordering::Acquire)
    }

    /// Marks a worker as left when the guard is dropped.
    pub(super) fn guard(&self, index: usize) -> impl Drop {
        Guard { exits: self, index }
    }

    /// Marks a worker as left.
    pub(super) fn leave(&self, index: usize) {
        self.left[index].store(true, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    /// Whether a worker has left.
    pub(super) fn has_left(&self, index: usize) -> bool {
        self.left[index].load(Ordering::Acquire)
    }

    /// Whether all workers have left.
    pub(super) fn have_all_left(&self) -> bool {
        (0..self.left.len()).all(|index| self.has_left(index))
    }

    /// Blocks until all workers have left, at most until the earliest limit of all concurrent callers; `None` is no
    /// limit.
    pub(super) fn wait_until_earliest(&self, limit: Option<Instant>) {
        let earliest = || *sync::lock(&self.limit);
        {
            let mut known = sync::lock(&self.limit);
            *known = known.into_iter().chain(limit).min();
        }
        self.changed.notify(usize::MAX);
        self.wait(earliest);
    }

    /// Blocks until all workers have left, at most until `deadline`, which is called again after each change.
    pub(super) fn wait(&self, deadline: impl Fn() -> Option<Instant>) {
        loop {
            let changed = self.changed.listen();
            if self.have_all_left() {
                return;
            }
            match deadline() {
                None => changed.wait(),
                Some(deadline) if changed.wait_deadline(deadline).is_none() => return,
                Some(_) => {}
            }
        }
    }
}

struct Guard<'a> {
    exits: &'a Exits,
    index: usize,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.exits.leave(self.index);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn wait_ends_at_the_earliest_limit_of_concurrent_callers() {
        let exits = Exits::new(1);
        thread::scope(|scope| {
            scope.spawn(|| exits.wait_until_earliest(None));
            exits.wait_until_earliest(Some(Instant::now() + Duration::from_millis(10)));
        });
        assert!(!exits.has_left(0));
    }
}
