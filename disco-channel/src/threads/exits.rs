//! Who has left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use event_listener::{Event, Listener};

/// The exits of a crew.
#[derive(Debug)]
pub(super) struct Exits {
    expected: AtomicBool,
    left: Box<[AtomicBool]>,
    changed: Event,
}

impl Exits {
    /// All are there.
    pub(super) fn new(workers: usize) -> Self {
        let left = (0..workers).map(|_| AtomicBool::new(false)).collect();
        Self { expected: AtomicBool::new(false), left, changed: Event::new() }
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

    /// Blocks until all have left, at most until `deadline`; for ever if there is none.
    pub(super) fn wait(&self, deadline: Option<Instant>) {
        loop {
            let changed = self.changed.listen();
            if (0..self.left.len()).all(|index| self.has_left(index)) {
                return;
            }
            match deadline {
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
