//! The worker threads of a started lane.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use disco_core::{Frame, Inbox, Link, Result, WorkerId, WorkerRange};

use super::endpoint::ThreadEndpoint;
use super::exits::Exits;
use super::work::{self, Run};
use crate::replies::{LeftReplies, Replies};
use crate::ring::spin_policy::Expect;
use crate::ring::{self, RingControl, Writer};

/// How long workers have to end after they were aborted, once the limit for leaving has passed.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// The threads of a lane, and the ring, links and exits that they share with it. Dropping the set closes the ring
/// without waiting.
pub(super) struct WorkerSet {
    /// Only the holder of the session's order ticket sends, so the lock is uncontended.
    pub(super) frames: Mutex<Writer<Arc<Frame>>>,
    pub(super) ring: RingControl<Arc<Frame>>,
    pub(super) exits: Arc<Exits>,
    /// In order of workers, as are `threads`.
    pub(super) links: Vec<Arc<Link>>,
    /// `None` once joined or detached.
    threads: Mutex<Vec<Option<JoinHandle<()>>>>,
    pub(super) inbox: Arc<dyn Inbox>,
    /// Replies that workers leave for callers that poll.
    pub(super) replies: Arc<LeftReplies>,
}

impl WorkerSet {
    /// Starts a thread for each of `workers`, at most [`ring::MAX_READERS`]. Beside them, `neighbours` workers run on this
    /// machine. `link` makes the link of each.
    pub(super) fn start(
        (workers, neighbours): (WorkerRange, usize),
        link: impl Fn(WorkerId) -> Link,
        run: &Arc<Run>,
        inbox: &Arc<dyn Inbox>,
    ) -> Result<Self> {
        let count = workers.len();
        let on_room = {
            let inbox = inbox.clone();
            move || inbox.room(workers)
        };
        let (writer, readers) = ring::ring_with_neighbours(neighbours, ring::CAPACITY, count, on_room);
        let worker_set = Self {
            ring: writer.control(),
            frames: Mutex::new(writer),
            exits: Arc::new(Exits::new(count)),
            links: workers.iter().map(|worker| Arc::new(link(worker))).collect(),
            threads: Mutex::new(Vec::with_capacity(count)),
            inbox: inbox.clone(),
            replies: Arc::new(LeftReplies::new(workers, Replies::of_threads(count))),
        };
        for (index, ((worker, frames), link)) in workers.iter().zip(readers).zip(&worker_set.links).enumerate() {
            let endpoint = ThreadEndpoint {
                worker,
                frames,
                expect: Expect::default(),
                link: link.clone(),
                inbox: inbox.clone(),
                replies: worker_set.replies.clone(),
                index,
            };
            let thread =
                work::spawn(run, endpoint, &worker_set.exits, index).inspect_err(|_| worker_set.shut_down())?;
            worker_set.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Some(thread));
        }
        Ok(worker_set)
    }

    /// Passes the last records of each worker to the inbox.
    pub(super) fn collect(&self, workers: WorkerRange, last: usize) {
        for (worker, link) in workers.iter().zip(&self.links) {
            self.inbox.recording(worker, link.activity().encode(last).into());
        }
    }

    /// Tells all workers to end now.
    pub(super) fn shut_down(&self) {
        self.exits.expect_all();
        self.ring.close();
    }

    /// Waits for the workers until `limit`, or until the limit of a concurrent caller if that is earlier. Joins the
    /// threads that have left, detaches the others, and returns the indices of the detached ones.
    pub(super) fn join(&self, limit: Duration) -> Vec<usize> {
        self.exits.wait_until_earliest(Instant::now().checked_add(limit));
        self.shut_down();
        if !self.exits.have_all_left() {
            // Ends collectives of workers that only wait for a stuck peer, of this lane or of another one.
            let cause = "the session shuts down".into();
            self.links.iter().for_each(|link| link.abort(u64::MAX, &cause));
            let grace = Instant::now().checked_add(ABORT_GRACE);
            self.exits.wait(|| grace);
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stuck = Vec::new();
        for (index, thread) in threads.iter_mut().enumerate() {
            match thread.take() {
                // The thread itself has reported its panic.
                Some(thread) if self.exits.has_left(index) => drop(thread.join()),
                // All concurrent callers name a stuck thread, whichever of them has detached it.
                _ if !self.exits.has_left(index) => stuck.push(index),
                _ => {}
            }
        }
        stuck
    }
}

impl Drop for WorkerSet {
    fn drop(&mut self) {
        self.shut_down();
    }
}
