//! Hardware queues. The ordinary streams of a device share a few queues. A queue dispatches the work of all its streams
//! in the order of submission. The work at the head of the queue blocks the queue until it is *dispatched*: a wait (for
//! a word or an event) is dispatched when the wait ends, other work when it starts, which is when the earlier work of
//! its stream is done.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use crate::sync::{lock, wait};

/// The shared queues of one device.
#[derive(Default)]
pub(crate) struct HardwareQueues(Mutex<Shared>);

#[derive(Default)]
struct Shared {
    queues: Vec<Arc<HardwareQueue>>,
    /// Number of ordinary streams that were created, including destroyed streams.
    streams: usize,
}

/// A queue (a ticket lock): work gets a ticket at submission, and tickets have their turn one after the other.
#[derive(Default)]
pub(crate) struct HardwareQueue {
    submitted: AtomicU64,
    dispatched: AtomicU64,
    /// Threads that wait for their turn.
    waiting: AtomicUsize,
    turn: Mutex<()>,
    next: Condvar,
}

impl HardwareQueues {
    /// The queue of the next ordinary stream: stream `k` of a device has queue `k` modulo `count`.
    pub(crate) fn next(&self, count: usize) -> Arc<HardwareQueue> {
        let mut shared = lock(&self.0);
        let index = shared.streams % count.max(1);
        shared.streams += 1;
        while shared.queues.len() <= index {
            shared.queues.push(Arc::default());
        }
        Arc::clone(&shared.queues[index])
    }
}

impl HardwareQueue {
    /// A ticket for work that is submitted now.
    pub(crate) fn submit(&self) -> u64 {
        self.submitted.fetch_add(1, SeqCst)
    }

    /// Waits until all earlier work is dispatched.
    pub(crate) fn wait_for_turn(&self, ticket: u64) {
        if self.dispatched.load(SeqCst) == ticket {
            return;
        }
        let mut turn = lock(&self.turn);
        // Incremented before the next check of `dispatched`: `dispatch` increments `dispatched` before it checks
        // `waiting`.
        self.waiting.fetch_add(1, SeqCst);
        while self.dispatched.load(SeqCst) != ticket {
            turn = wait(&self.next, turn);
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// Ends the turn of the work that has it.
    pub(crate) fn dispatch(&self) {
        self.dispatched.fetch_add(1, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            drop(lock(&self.turn));
            self.next.notify_all();
        }
    }
}
