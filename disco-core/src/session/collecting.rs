//! Collects the recordings of workers, and finds the reason of a broken collective in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use event_listener::{Event, Listener as _};
use futures_lite::future;

use super::LaneSession;
use super::command_stream::CommandStream;
use crate::activity::Recording;
use crate::diagnosis::Diagnosis;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::sync;
use crate::worker_range::WorkerRange;

/// Time that the recordings for an error's table have to arrive.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// Number of each worker's records that an error's table is made of.
pub(super) const EVIDENCE: usize = 32;

/// The recording of each worker, or the reason why it is missing.
pub type Recordings = Vec<(WorkerId, Result<Recording>)>;

/// Recordings that arrive for one request.
#[derive(Debug)]
pub(super) struct Collection {
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
    gone: BTreeSet<WorkerId>,
}

impl Collection {
    /// A request for the recordings of so many workers.
    pub(super) fn new(workers: usize) -> Self {
        Self { workers, begun: Instant::now(), arrived: Mutex::default(), done: Event::new() }
    }

    /// The recordings of all workers, in order; `why` is the error of a worker whose recording has not come.
    pub(super) fn take(&self, members: &Members, why: &str) -> Recordings {
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
        arrived.gone.retain(|place| !places.contains(*place));
    }

    /// Blocks until the recordings of all workers have come, for at most `limit` from the request on.
    fn wait(&self, limit: Duration) {
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
    pub(super) fn give_up(&self, workers: impl IntoIterator<Item = WorkerId>) {
        self.lock().gone.extend(workers);
        if self.is_complete() {
            self.done.notify(usize::MAX);
        }
    }

    fn is_complete(&self) -> bool {
        let Arrived { recordings, gone } = &*self.lock();
        let silent = gone.iter().filter(|worker| !recordings.contains_key(worker));
        recordings.len() + silent.count() >= self.workers
    }
}

impl LaneSession {
    /// The recording of each worker: its last operations, and with a [timeline](crate::activity::RecorderConfig) also
    /// commands and spans. Works while workers hang, and after the session has failed. Waits for workers of other
    /// machines for at most `limit`.
    ///
    /// # Errors
    /// Of one worker: nothing came from it in time, because its node is lost or hangs.
    pub async fn recordings(&self, limit: Duration) -> Recordings {
        let collection = self.stream.reply_table.gather(usize::MAX);
        self.stream.arrival(&collection, limit).await;
        collection.take(&self.stream.reply_table.members(), &late(limit))
    }

    /// A function that returns the recording of each worker, as [`LaneSession::recordings`] does, with the `last` records
    /// of each. It may be called on any thread, and blocks for at most a limit. It returns none once the session is
    /// dropped, which it does not keep alive.
    pub fn collector(&self) -> impl Fn(usize, Duration) -> Option<Recordings> + Send + Sync + 'static {
        let table = Arc::downgrade(&self.stream.reply_table);
        move |last, limit| {
            let table = table.upgrade()?;
            let collection = table.gather(last);
            collection.wait(limit);
            Some(collection.take(&table.members(), &late(limit)))
        }
    }
}

impl CommandStream {
    /// Waits until the recordings of all workers have come, for at most `limit` from the request on.
    async fn arrival(&self, collection: &Collection, limit: Duration) {
        let ticks = self.ticker.start();
        loop {
            let (done, tick) = (collection.done.listen(), ticks.next());
            if collection.is_complete() || collection.begun.elapsed() >= limit {
                return;
            }
            future::or(done, tick).await;
        }
    }

    /// Adds a table of the workers' last operations to the error of a stuck or broken collective.
    pub(super) async fn explain<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            // In a box, so that the futures of methods stay small.
            Err(error) => Err(Box::pin(self.explained(error)).await),
        }
    }

    async fn explained(&self, error: Error) -> Error {
        let is_stuck = match &error {
            Error::Deadline { .. } | Error::Stalled { .. } | Error::Lost(_) => true,
            Error::Worker(failure) => is_of_collective(failure),
            _ => false,
        };
        if !is_stuck || self.reply_table.is_explained(&error) {
            return error;
        }
        let evidence = self.reply_table.evidence();
        self.arrival(&evidence, REPORT_LIMIT).await;
        let explained = match Diagnosis::of(&evidence.take(&self.reply_table.members(), "no records have come")) {
            Some(diagnosis) => add(error.clone(), &format!("\n{diagnosis}")),
            None => error.clone(),
        };
        self.reply_table.explain(&error, &explained);
        explained
    }
}

/// Why there is no recording of a worker.
fn late(limit: Duration) -> String {
    format!("its records have not come within {limit:?}")
}

/// Whether a worker failed in a collective, by no fault of its own code.
pub(super) fn is_of_collective(failure: &Failure) -> bool {
    matches!(failure.kind, ErrorKind::Deadline { .. } | ErrorKind::Mismatch | ErrorKind::Broken)
}

fn add(error: Error, table: &str) -> Error {
    match error {
        Error::Worker(failure) => {
            let mut failure = Failure::clone(&failure);
            match failure.causes.last_mut() {
                Some(last) => last.push_str(table),
                None => failure.message.push_str(table),
            }
            Error::Worker(Arc::new(failure))
        }
        Error::Deadline { operation, after, state } => Error::Deadline { operation, after, state: state + table },
        Error::Stalled { worker, after, state } => Error::Stalled { worker, after, state: state + table },
        Error::Lost(loss) => {
            let mut loss = (*loss).clone();
            loss.records = Some(table.into());
            Error::Lost(Arc::new(loss))
        }
        other => other,
    }
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
        collection.give_up([0, 1].map(worker));
        collection.give_up([1, 2].map(worker));
        assert!(!collection.is_complete());
        collection.add(worker(3), [1].into());
        assert!(collection.is_complete());
        // A new worker has taken the place of a lost one.
        collection.forget(WorkerRange::new(1..2));
        assert!(!collection.is_complete());
    }
}
