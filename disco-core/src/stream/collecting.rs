//! Collects the recordings of workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use event_listener::{Event, Listener as _};
use futures_lite::future;

use super::ticker::Ticker;
use crate::activity::Recording;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::sync;
use crate::worker_range::WorkerRange;

/// Number of each worker's records that an error's table is made of.
pub(super) const EVIDENCE: usize = 32;

/// The recording of each worker, or the reason why it is missing.
pub type Recordings = Vec<(WorkerId, Result<Recording>)>;

/// Recordings that arrive for one request.
#[derive(Debug)]
pub(crate) struct Collection {
    /// Number of workers. Their recordings are known by the places of the workers.
    workers: usize,
    begun: Instant,
    arrived: Mutex<Arrived>,
    /// Notified for the last one.
    done: Event,
}

#[derive(Debug, Default)]
struct Arrived {
    recordings: BTreeMap<WorkerId, Arc<[u8]>>,
    /// Workers that do not answer, unless they have answered before.
    ended: BTreeSet<WorkerId>,
}

impl Collection {
    /// A request for the recordings of so many workers.
    pub(super) fn new(workers: usize) -> Self {
        Self { workers, begun: Instant::now(), arrived: Mutex::default(), done: Event::new() }
    }

    /// The recordings of all workers, in order; `why` is the error of a worker whose recording has not come.
    pub(crate) fn take(&self, members: &Members, why: &str) -> Recordings {
        let recordings = &self.lock().recordings;
        let of = |(worker, place)| {
            let bytes = recordings.get(&place).ok_or_else(|| Error::Missing(why.to_owned()));
            (worker, bytes.and_then(|bytes| Ok(Recording::decode(bytes)?)))
        };
        members.world().workers().zip(members.places()).map(of).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Arrived> {
        sync::lock(&self.arrived)
    }

    pub(super) fn add(&self, from: WorkerId, bytes: Arc<[u8]>) {
        let mut arrived = self.lock();
        // The answer to another request may have fewer records; a later one of the same size is newer.
        if arrived.recordings.get(&from).is_none_or(|known| known.len() <= bytes.len()) {
            arrived.recordings.insert(from, bytes);
        }
        drop(arrived);
        if self.is_complete() {
            self.done.notify(usize::MAX);
        }
    }

    /// Removes the recordings of workers that have no place any more.
    pub(super) fn forget(&self, places: WorkerRange) {
        let mut arrived = self.lock();
        arrived.recordings.retain(|place, _| !places.contains(*place));
        arrived.ended.retain(|place| !places.contains(*place));
    }

    /// Waits until the recordings of all workers have come, for at most `limit` from the request on.
    pub(crate) async fn arrival(&self, ticker: &Ticker, limit: Duration) {
        let ticks = ticker.start();
        loop {
            let (done, tick) = (self.done.listen(), ticks.next());
            if self.is_complete() || self.begun.elapsed() >= limit {
                return;
            }
            future::or(done, tick).await;
        }
    }

    /// Blocks until the recordings of all workers have come, for at most `limit` from the request on.
    pub(crate) fn wait(&self, limit: Duration) {
        loop {
            let done = self.done.listen();
            let left = limit.saturating_sub(self.begun.elapsed());
            if self.is_complete() || left.is_zero() {
                return;
            }
            done.wait_timeout(left);
        }
    }

    /// Expects no answer of these workers.
    pub(super) fn expect_none_of(&self, workers: impl IntoIterator<Item = WorkerId>) {
        self.lock().ended.extend(workers);
        if self.is_complete() {
            self.done.notify(usize::MAX);
        }
    }

    fn is_complete(&self) -> bool {
        let Arrived { recordings, ended } = &*self.lock();
        let silent = ended.iter().filter(|worker| !recordings.contains_key(worker));
        recordings.len() + silent.count() >= self.workers
    }
}

/// Whether a worker failed in a collective, by no fault of its own code.
pub(super) fn is_of_collective(failure: &Failure) -> bool {
    matches!(failure.kind, ErrorKind::Deadline { .. } | ErrorKind::Mismatch | ErrorKind::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_complete_once_each_worker_has_answered_or_is_lost() {
        let collection = Collection::new(4);
        let worker = WorkerId::new;
        collection.add(worker(0), [1].into());
        // Worker 0 has answered before its loss, and worker 1 is lost twice.
        collection.expect_none_of([0, 1].map(worker));
        collection.expect_none_of([1, 2].map(worker));
        assert!(!collection.is_complete());
        collection.add(worker(3), [1].into());
        assert!(collection.is_complete());
        // A new worker has taken the place of a lost one.
        collection.forget(WorkerRange::new(1..2));
        assert!(!collection.is_complete());
    }
}
