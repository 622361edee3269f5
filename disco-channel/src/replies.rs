//! Replies without a value that workers of this machine leave for callers that poll, so that no other thread wakes up
//! for them, and a worker thread does not touch the session's table of replies.
//!
//! Each worker has a word for its reply. If no caller polls, or if the last reply was not taken, a worker sends its reply
//! another way. A worker stores the reply, then loads `polling` again, and takes the reply back if no caller polls. The end
//! of a caller's polling decrements `polling`; each caller that still waits then takes all replies. Both sides have a
//! sequentially consistent fence in between, so one of the two takes the reply.

#[cfg(not(loom))]
use disco_core::{Inbox, Value, WorkerRange};
#[cfg(not(loom))]
use parking_lot::ReentrantMutex;

use crate::ring::sync::{Arc, AtomicU64, Ordering, Padded, fence};
#[cfg(all(target_os = "linux", not(loom)))]
use crate::shared_ring::Memory;

/// The replies of some workers, each of which knows its index.
#[derive(Clone)]
pub(crate) struct Replies(Words);

#[derive(Clone)]
enum Words {
    /// In the memory of a ring.
    #[cfg(all(target_os = "linux", not(loom)))]
    Ring(Memory),
    /// In the memory of this process.
    Own(Arc<OwnWords>),
}

struct OwnWords {
    /// Number of callers that poll.
    polling: Padded<AtomicU64>,
    /// The number of the command that each worker has replied to; 0 once it is taken.
    replies: Box<[Padded<AtomicU64>]>,
}

impl Replies {
    /// The replies of the readers of `memory`.
    #[cfg(all(target_os = "linux", not(loom)))]
    pub(crate) fn new(memory: Memory) -> Self {
        Self(Words::Ring(memory))
    }

    /// The replies of so many threads of this process.
    pub(crate) fn of_threads(threads: usize) -> Self {
        let word = || Padded(AtomicU64::new(0));
        Self(Words::Own(Arc::new(OwnWords { polling: word(), replies: (0..threads).map(|_| word()).collect() })))
    }

    /// Leaves the reply of a worker to command `number` for a caller that polls. Returns false if the worker has to
    /// send the reply another way, because no caller polls or its last reply was not taken.
    pub(crate) fn leave(&self, worker: usize, number: u64) -> bool {
        let (polling, reply) = (self.0.polling(), self.0.reply(worker));
        if number == 0
            || polling.load(Ordering::Relaxed) == 0
            || reply.compare_exchange(0, number, Ordering::Release, Ordering::Relaxed).is_err()
        {
            return false;
        }
        fence(Ordering::SeqCst);
        let is_seen = polling.load(Ordering::Relaxed) != 0;
        is_seen || reply.swap(0, Ordering::Relaxed) == 0
    }

    /// A caller begins to poll.
    pub(crate) fn start_polling(&self) {
        self.0.polling().fetch_add(1, Ordering::Relaxed);
    }

    /// A caller ends its polling. Each caller that still waits has to [take](Self::take) the replies that are left.
    pub(crate) fn stop_polling(&self) {
        self.0.polling().fetch_sub(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether a reply waits to be taken.
    #[cfg(not(loom))]
    pub(crate) fn are_left(&self) -> bool {
        (0..self.0.workers()).any(|worker| self.0.reply(worker).load(Ordering::Relaxed) != 0)
    }

    /// Takes the replies: calls `deliver` with the worker and the number of the command.
    pub(crate) fn take(&self, mut deliver: impl FnMut(usize, u64)) {
        for worker in 0..self.0.workers() {
            let reply = self.0.reply(worker);
            if reply.load(Ordering::Relaxed) == 0 {
                continue;
            }
            match reply.swap(0, Ordering::Acquire) {
                0 => {}
                number => deliver(worker, number),
            }
        }
    }
}

impl Words {
    fn workers(&self) -> usize {
        match self {
            #[cfg(all(target_os = "linux", not(loom)))]
            Self::Ring(memory) => memory.readers(),
            Self::Own(words) => words.replies.len(),
        }
    }

    fn polling(&self) -> &AtomicU64 {
        match self {
            #[cfg(all(target_os = "linux", not(loom)))]
            Self::Ring(memory) => memory.polling(),
            Self::Own(words) => &words.polling,
        }
    }

    fn reply(&self, worker: usize) -> &AtomicU64 {
        match self {
            #[cfg(all(target_os = "linux", not(loom)))]
            Self::Ring(memory) => memory.reply(worker),
            Self::Own(words) => &words.replies[worker],
        }
    }
}

/// The [`Replies`] of a lane's workers, and their delivery to the lane's inbox.
#[cfg(not(loom))]
pub(crate) struct LeftReplies {
    workers: WorkerRange,
    replies: Replies,
    /// Locked while replies are delivered. Reentrant: a reply may run code of the program that uses the session. Apart from the
    /// fields that workers read for each reply.
    delivery: Padded<ReentrantMutex<()>>,
}

#[cfg(not(loom))]
impl LeftReplies {
    /// The replies of `workers`, in their order.
    pub(crate) fn new(workers: WorkerRange, replies: Replies) -> Self {
        Self { workers, replies, delivery: Padded(ReentrantMutex::new(())) }
    }

    /// As [`Replies::leave`].
    pub(crate) fn leave(&self, worker: usize, number: u64) -> bool {
        self.replies.leave(worker, number)
    }

    /// A caller begins to poll, or ends that. Each caller that still waits after the end has to [poll](Self::poll) once more.
    pub(crate) fn note_caller(&self, polls: bool) {
        if polls { self.replies.start_polling() } else { self.replies.stop_polling() }
    }

    /// Delivers the replies that workers have left, if there are any.
    pub(crate) fn poll(&self, inbox: &dyn Inbox) {
        if self.replies.are_left() {
            self.deliver(inbox);
        }
    }

    /// Delivers the replies that workers have left. If another thread delivers some of them, waits until they are
    /// delivered: else a worker could be reported as left while a caller still holds its reply.
    pub(crate) fn deliver(&self, inbox: &dyn Inbox) {
        let _one_thread_at_a_time = self.delivery.lock();
        self.replies.take(|index, number| {
            if let Some(worker) = self.workers.get(index) {
                inbox.reply(worker, number, Ok(Value::None));
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Mutex;
    use loom::thread;

    use super::*;

    /// A worker leaves two replies while two callers poll. Each is taken once, or the worker knows that it has to send it.
    #[test]
    fn a_reply_that_is_left_is_taken_once() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(4));
        builder.check(|| {
            let replies = Replies::of_threads(1);
            let poll = |replies: Replies| {
                let mut taken = Vec::new();
                replies.start_polling();
                replies.take(|worker, number| taken.push((worker, number)));
                replies.stop_polling();
                replies.take(|worker, number| taken.push((worker, number)));
                taken
            };
            let worker = {
                let replies = replies.clone();
                thread::spawn(move || [1, 2].map(|number| replies.leave(0, number)))
            };
            let other = {
                let replies = replies.clone();
                thread::spawn(move || poll(replies))
            };
            let mut taken = poll(replies);
            taken.extend(other.join().unwrap());
            let left = worker.join().unwrap();
            taken.sort_unstable();
            let expected: Vec<_> =
                [(0, 1), (0, 2)].into_iter().zip(left).filter_map(|(it, is_left)| is_left.then_some(it)).collect();
            assert_eq!(taken, expected);
        });
    }

    /// A session polls while none of its callers sleeps. The first of two that sleep ends this polling, the second relies on
    /// that. No reply is left once both sleep.
    #[test]
    fn no_reply_is_left_while_callers_sleep() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(4));
        builder.check(|| {
            let (replies, sleepers) = (Replies::of_threads(1), Arc::new(Mutex::new(0)));
            replies.start_polling();
            let sleep = |replies: Replies, sleepers: Arc<Mutex<usize>>| {
                {
                    let mut count = sleepers.lock().unwrap();
                    if *count == 0 {
                        replies.stop_polling();
                    }
                    *count += 1;
                }
                let mut taken = 0;
                replies.take(|_, _| taken += 1);
                taken
            };
            let worker = {
                let replies = replies.clone();
                thread::spawn(move || [1, 2].map(|number| replies.leave(0, number)))
            };
            let other = {
                let (replies, sleepers) = (replies.clone(), sleepers.clone());
                thread::spawn(move || sleep(replies, sleepers))
            };
            let taken = sleep(replies, sleepers) + other.join().unwrap();
            let left = worker.join().unwrap().into_iter().filter(|is_left| *is_left).count();
            assert_eq!(taken, left);
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::mpsc::{self, Sender};
    use std::thread;
    use std::time::Duration;

    use disco_core::channel::{Notice, Reply};
    use disco_core::{Error, WorkerId};

    use super::*;

    /// Takes a while for each reply, and tells when it begins.
    struct SlowInbox {
        begun: Sender<WorkerId>,
        delivered: AtomicBool,
    }

    impl Inbox for SlowInbox {
        fn reply(&self, worker: WorkerId, _: u64, _: Reply) {
            self.begun.send(worker).unwrap();
            // Time in which a caller that does not wait for this delivery would return.
            thread::sleep(Duration::from_millis(20));
            self.delivered.store(true, std::sync::atomic::Ordering::Relaxed);
        }

        fn notice(&self, _: WorkerId, _: Notice) {}

        fn room(&self, _: WorkerRange) {}

        fn left(&self, _: WorkerRange) {}

        fn lost(&self, _: WorkerRange, _: Error) {}
    }

    fn are_left_only_while_a_caller_polls(replies: &Replies) {
        let take = || {
            let mut taken = Vec::new();
            replies.take(|worker, number| taken.push((worker, number)));
            taken
        };
        assert!(!replies.leave(0, 7), "no caller polls");
        replies.start_polling();
        assert_eq!(
            [replies.leave(0, 0), replies.leave(0, 7), replies.leave(0, 8), replies.leave(1, 8)],
            [false, true, false, true]
        );
        assert_eq!((take(), take()), (vec![(0, 7), (1, 8)], vec![]));
        assert!(replies.leave(0, 9));
        replies.stop_polling();
        assert_eq!(take(), [(0, 9)], "left before the end of the polling");
        assert!(!replies.leave(0, 10));
    }

    #[test]
    fn replies_of_threads_are_left_only_while_a_caller_polls() {
        are_left_only_while_a_caller_polls(&Replies::of_threads(2));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn replies_of_processes_are_left_only_while_a_caller_polls() {
        let segment = Arc::new(disco_core::shared_memory::Segment::create(8 * Memory::words(2, 64)).unwrap());
        are_left_only_while_a_caller_polls(&Replies::new(Memory::new(segment, 2, 64).unwrap()));
    }

    /// Polls again for each reply, and counts replies.
    struct PollingInbox {
        replies: Arc<LeftReplies>,
        count: AtomicUsize,
    }

    impl Inbox for PollingInbox {
        fn reply(&self, from: WorkerId, number: u64, _: Reply) {
            let count = self.count.fetch_add(1, Ordering::Relaxed);
            // The worker replies again while its first reply is delivered.
            if count < 3 {
                assert!(self.replies.leave(from.index(), number + 1));
            }
            self.replies.poll(self);
            assert!(!self.replies.replies.are_left(), "code that waits for a reply gets it");
        }

        fn notice(&self, _: WorkerId, _: Notice) {}

        fn room(&self, _: WorkerRange) {}

        fn left(&self, _: WorkerRange) {}

        fn lost(&self, _: WorkerRange, _: Error) {}
    }

    #[test]
    fn a_reply_may_run_code_that_polls() {
        let replies = Arc::new(LeftReplies::new(WorkerRange::new(0..2), Replies::of_threads(2)));
        replies.note_caller(true);
        let inbox = PollingInbox { replies: replies.clone(), count: AtomicUsize::new(0) };
        assert!(replies.leave(0, 1) && replies.leave(1, 1));
        replies.poll(&inbox);
        assert_eq!(inbox.count.load(Ordering::Relaxed), 5);
        replies.note_caller(false);
    }

    #[test]
    fn replies_that_another_thread_has_taken_are_delivered_first() {
        let (begun, begins) = mpsc::channel();
        let inbox = SlowInbox { begun, delivered: AtomicBool::new(false) };
        let replies = LeftReplies::new(WorkerRange::new(4..6), Replies::of_threads(2));
        replies.note_caller(true);
        assert!(replies.leave(1, 7) && !replies.leave(1, 8), "the first was not taken");
        thread::scope(|scope| {
            scope.spawn(|| replies.poll(&inbox));
            assert_eq!(begins.recv().unwrap(), WorkerId::new(5));
            replies.deliver(&inbox);
            assert!(inbox.delivered.load(std::sync::atomic::Ordering::Relaxed));
        });
        replies.note_caller(false);
        assert!(!replies.leave(1, 9), "no caller polls");
    }
}
