//! Who has left.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use disco_core::sync;
use event_listener::{Event, Listener};

/// The exits of a crew.
#[derive(Debug)]
pub(super) struct Exits {
    expected: AtomicBool,
    left: Box<[AtomicBool]>,
    /// Until when the crew may leave by itself.
    limit: Mutex<Option<Instant>>,
    changed: Event,
}

impl Exits {
    /// All are there.
    pub(super) fn new(workers: usize) -> Self {
        let left = (0..workers).map(|_| AtomicBool::new(false)).collect();
        Self { expected: AtomicBool::new(false), left, limit: Mutex::default(), changed: Event::new() }
    }

    /// From now on leaving is no loss.
    pub(super) fn expect(&self) {
        self.expected.store(true, Ordering::Release);
    }

    /// Whether leaving is no loss.
    pub(super) fn are_expected(&self) -> bool {
        self.expected.load(Ordering::Acquire)
    }

    /// Says that a worker has left once the guard is dropped.
    pub(super) fn guard(&self, index: usize) -> impl Drop {
        Guard { exits: self, index }
    }

    /// A worker has left.
    pub(super) fn leave(&self, index: usize) {
        self.left[index].store(true, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    /// Whether a worker has left.
    pub(super) fn has_left(&self, index: usize) -> bool {
        self.left[index].load(Ordering::Acquire)
    }

    /// Blocks until all have left, at most until `limit`, or an earlier one of another caller; for ever if there is none.
    pub(super) fn wait_until_earliest(&self, limit: Option<Instant>) {
        let earliest = || *sync::lock(&self.limit);
        {
            let mut known = sync::lock(&self.limit);
            *known = known.into_iter().chain(limit).min();
        }
        self.changed.notify(usize::MAX);
        self.wait(earliest);
    }

    /// Blocks until all have left, at most until `deadline`, which is asked for again whenever something changes.
    pub(super) fn wait(&self, deadline: impl Fn() -> Option<Instant>) {
        loop {
            let changed = self.changed.listen();
            if (0..self.left.len()).all(|index| self.has_left(index)) {
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
    fn an_earlier_limit_of_another_caller_ends_a_wait() {
        let exits = Exits::new(1);
        thread::scope(|scope| {
            scope.spawn(|| exits.wait_until_earliest(None));
            exits.wait_until_earliest(Some(Instant::now() + Duration::from_millis(10)));
        });
        assert!(!exits.has_left(0));
    }
}
