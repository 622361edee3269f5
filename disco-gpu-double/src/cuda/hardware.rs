//! Hardware queues. The ordinary streams of a device share a few of them, and each queue starts its work in the order in which that
//! was submitted, whatever streams it is of. Work at the head of a queue has its turn until it is *dispatched*: a wait (for a word or
//! for an event) until it is over, all other work until it starts, which is when the work before it in its stream is done.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use crate::sync::{lock, wait};

/// The shared queues of one device.
#[derive(Default)]
pub(crate) struct HardwareQueues(Mutex<Shared>);

#[derive(Default)]
struct Shared {
    queues: Vec<Arc<HardwareQueue>>,
    /// Ordinary streams that were made, destroyed ones included.
    streams: usize,
}

/// One queue. Each piece of work has a ticket, and the queue calls them one by one.
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
    /// The queue of the next ordinary stream: of `count` queues, the stream `k` of a device has queue `k` modulo `count`.
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
        // Counted before the next look: `dispatch` looks for waiting threads after it has counted.
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
