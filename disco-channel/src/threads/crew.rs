//! The workers of a lane that was started.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use disco_core::link::Shared;
use disco_core::{Frame, Inbox, Link, Result, WorkerId, WorkerRange};

use super::endpoint::ThreadEndpoint;
use super::exits::Exits;
use super::work::{self, Run};
use crate::ring::{self, Handle, Refused, Writer};

/// How long aborted workers have to leave after the limit.
const GRACE: Duration = Duration::from_millis(500);

/// Threads, and what reaches them. Dropping it lets them go: they leave at the next opportunity, nobody waits.
pub(super) struct Crew {
    /// Only the holder of the session's order ticket sends, so that the lock is free.
    frames: Mutex<Writer<Arc<Frame>>>,
    pub(super) ring: Handle<Arc<Frame>>,
    pub(super) exits: Arc<Exits>,
    /// In order of workers, as are `threads`.
    pub(super) links: Vec<Arc<Link>>,
    /// `None`: was joined or detached.
    threads: Mutex<Vec<Option<JoinHandle<()>>>>,
}

impl Crew {
    /// Starts a thread for each of `workers`, as many as a ring can have readers at most.
    pub(super) fn start(
        workers: WorkerRange,
        shared: &Arc<Shared>,
        run: &Arc<Run>,
        inbox: &Arc<dyn Inbox>,
    ) -> Result<Self> {
        let count = workers.len();
        let on_room = {
            let inbox = inbox.clone();
            move || inbox.room(workers)
        };
        let (writer, readers) = ring::ring(ring::CAPACITY, count, on_room);
        let crew = Self {
            ring: writer.handle(),
            frames: Mutex::new(writer),
            exits: Arc::new(Exits::new(count)),
            links: workers.iter().map(|worker| Arc::new(link(worker, shared, inbox))).collect(),
            threads: Mutex::new(Vec::with_capacity(count)),
        };
        for (index, ((worker, frames), link)) in workers.iter().zip(readers).zip(&crew.links).enumerate() {
            let endpoint = ThreadEndpoint { worker, frames, link: link.clone(), inbox: inbox.clone() };
            let thread = work::spawn(run, endpoint, &crew.exits, index).inspect_err(|_| crew.let_go())?;
            crew.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Some(thread));
        }
        Ok(crew)
    }

    pub(super) fn send(&self, frame: &Arc<Frame>) -> Result<(), Refused> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).send(frame)
    }

    /// Tells everybody to leave, now.
    pub(super) fn let_go(&self) {
        self.exits.expect();
        self.ring.close();
    }

    /// Waits for the workers until `limit`, or until the limit of a concurrent caller if that is earlier. Joins the threads that have left,
    /// detaches the others, and returns the indices of the detached ones.
    pub(super) fn dismiss(&self, limit: Duration) -> Vec<usize> {
        self.exits.wait_until_earliest(Instant::now().checked_add(limit));
        self.let_go();
        // Whoever waits on a peer that is stuck is not stuck itself.
        let cause = "the session shuts down".into();
        self.links.iter().for_each(|link| link.abort(u64::MAX, &cause));
        let grace = Instant::now().checked_add(GRACE);
        self.exits.wait(|| grace);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stuck = Vec::new();
        for (index, thread) in threads.iter_mut().enumerate() {
            match thread.take() {
                // What it panicked with was reported by the thread itself.
                Some(thread) if self.exits.has_left(index) => drop(thread.join()),
                // Also one that another caller has detached: all callers name it.
                _ if !self.exits.has_left(index) => stuck.push(index),
                _ => {}
            }
        }
        stuck
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn link(worker: WorkerId, shared: &Arc<Shared>, inbox: &Arc<dyn Inbox>) -> Link {
    let inbox = inbox.clone();
    Link::of_thread(shared.clone(), move |notice| inbox.notice(worker, notice))
}
