//! The threads of a session that start lanes to new workers, and close lanes that it does not use any more: both block.

use std::collections::BTreeSet;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use futures_channel::oneshot;

use super::DRef;
use super::new_lanes::{NewLane, close, end};
use super::replacement_policy::{History, ReplacementPolicy};
use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::stream::fleet::Fleet;
use crate::stream::reply_table::ReplyTable;
use crate::sync;
use crate::value::Value;

/// Threads and the program's settings for changes of the workers, beside the [`Fleet`]. The end of the session waits for the
/// threads.
#[derive(Default)]
pub(super) struct Helpers(Mutex<State>);

#[derive(Default)]
struct State {
    threads: Vec<JoinHandle<()>>,
    /// Lanes that start.
    starting: Vec<Arc<dyn Channel>>,
    /// Whether they start before a caller asks for them.
    is_ahead: bool,
    ready: Vec<Ready>,
    policy: ReplacementPolicy,
    history: History,
    restore: Option<Restore>,
}

/// Returns the registers of a new worker, with their values.
pub(super) type Restore = Arc<dyn Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync>;

/// New workers that have started before a caller asks for them.
pub(super) struct Ready {
    /// The vacancies that they fill.
    pub(super) places: BTreeSet<WorkerId>,
    pub(super) lanes: Vec<NewLane>,
}

/// A caller that changes workers, or a thread that starts them. Dropping it lets others do so.
pub(super) struct Busy(Arc<ReplyTable>);

impl Busy {
    /// Of [`Fleet::begin_work`] or [`Fleet::begin_ahead`], which has succeeded.
    pub(super) fn new(table: &Arc<ReplyTable>) -> Self {
        Self(table.clone())
    }
}

/// New workers that a caller has asked for. Unless the session takes them, a thread ends them, and nobody changes the workers
/// before that.
pub(super) struct Started {
    lanes: Vec<NewLane>,
    helpers: Arc<Helpers>,
    busy: Arc<Busy>,
    /// Dropped once they have ended.
    ended: Option<oneshot::Sender<()>>,
}

impl Started {
    pub(super) fn new(lanes: Vec<NewLane>, helpers: &Arc<Helpers>, busy: &Arc<Busy>) -> Self {
        Self { lanes, helpers: helpers.clone(), busy: busy.clone(), ended: None }
    }

    /// Ends the workers, and waits for that: their places are free then.
    pub(super) async fn end(mut self) {
        let (ended, end) = oneshot::channel();
        self.ended = Some(ended);
        drop(self);
        // Never a message.
        _ = end.await;
    }

    /// The lanes, for the session.
    pub(super) fn take(mut self) -> Vec<NewLane> {
        std::mem::take(&mut self.lanes)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let (lanes, busy, ended) = (std::mem::take(&mut self.lanes), self.busy.clone(), self.ended.take());
        if lanes.is_empty() {
            return;
        }
        let spawned = self.helpers.spawn("disco-close", move || {
            end(&lanes);
            drop((busy, ended));
        });
        // Dropping the lanes ends their workers, too.
        if let Err(error) = spawned {
            tracing::warn!(%error, "new workers that are not used are not waited for");
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fleet(Fleet::end_work);
        self.0.fleet_changed.notify(usize::MAX);
    }
}

impl Helpers {
    /// Runs `work`, which blocks, on a thread that the end of the session waits for.
    pub(super) fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.into()).spawn(work)?;
        let threads = &mut self.lock().threads;
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Starts the lanes that `make` returns, at the same time; `is_ahead` if no caller has asked for them.
    pub(super) fn start(
        &self,
        operation: &str,
        is_ahead: bool,
        make: impl FnOnce() -> Result<Vec<Arc<dyn Channel>>>,
        table: &Arc<ReplyTable>,
    ) -> Result<Vec<NewLane>> {
        let run = AssertUnwindSafe(|| self.start_lanes(operation, is_ahead, make()?, table));
        panic::catch_unwind(run).unwrap_or_else(|_| Err(panicked(operation)))
    }

    fn start_lanes(
        &self,
        operation: &str,
        is_ahead: bool,
        lanes: Vec<Arc<dyn Channel>>,
        table: &Arc<ReplyTable>,
    ) -> Result<Vec<NewLane>> {
        {
            let mut state = self.lock();
            (state.starting, state.is_ahead) = (lanes.clone(), is_ahead);
        }
        let new: Vec<NewLane> = lanes.into_iter().map(|lane| NewLane::new(lane, table)).collect();
        let start = |new: &NewLane| {
            if table.fleet(|fleet| fleet.is_over() || is_ahead && fleet.is_unwanted()) {
                Err(Error::Closed(operation.to_owned()))
            } else {
                new.start()
            }
        };
        let started = thread::scope(|scope| {
            let begin = |new| thread::Builder::new().spawn_scoped(scope, move || start(new));
            let starts: Vec<_> = new.iter().map(begin).collect();
            // Waits for all of them, also after the first error.
            let end = |started: io::Result<ScopedJoinHandle<'_, Result<()>>>| match started {
                Ok(started) => started.join().unwrap_or_else(|_| Err(panicked(operation))),
                Err(error) => Err(no_thread(operation, error)),
            };
            let ends: Vec<_> = starts.into_iter().map(end).collect();
            ends.into_iter().collect::<Result<()>>()
        });
        let no_more = std::mem::take(&mut self.lock().starting);
        drop(no_more);
        match started {
            Ok(()) => Ok(new),
            Err(error) => {
                end(&new);
                Err(error)
            }
        }
    }

    /// Gives up the start of the workers that start before a caller asks for them: none of them is wanted.
    pub(super) fn give_up_ahead(&self) {
        let starting = {
            let state = self.lock();
            if state.is_ahead { state.starting.clone() } else { Vec::new() }
        };
        if starting.is_empty() {
            return;
        }
        // At the end of the session, they are given up anyway.
        _ = self.spawn("disco-close", move || give_up(&starting));
    }

    /// Ends the workers of lanes that the session does not use any more, on a thread of its own.
    pub(super) fn close_unused(&self, lanes: Vec<Arc<dyn Channel>>) {
        if lanes.is_empty() {
            return;
        }
        let closed = self.spawn("disco-close", move || lanes.iter().for_each(close));
        // Dropping the lanes ends their workers, too.
        if let Err(error) = closed {
            tracing::warn!(%error, "lanes that are not used are not waited for");
        }
    }

    /// Keeps new workers until a caller gives them their places.
    pub(super) fn keep(&self, ready: Ready) {
        self.lock().ready.push(ready);
    }

    /// The new workers that have started before a caller asked for them, in the order of their losses.
    pub(super) fn take_ready(&self) -> Vec<Ready> {
        std::mem::take(&mut self.lock().ready)
    }

    /// Sets the program's function that restores new workers.
    pub(super) fn set_restore(&self, restore: Restore) {
        let before = self.lock().restore.replace(restore);
        // Code of the program, which may use the session.
        drop(before);
    }

    pub(super) fn restore(&self) -> Option<Restore> {
        self.lock().restore.clone()
    }

    pub(super) fn set_policy(&self, policy: ReplacementPolicy) {
        self.lock().policy = policy;
    }

    pub(super) fn policy(&self) -> ReplacementPolicy {
        self.lock().policy
    }

    /// [`History::admit`] now.
    pub(super) fn admit(&self, list: &str, count: usize) -> Result<()> {
        let State { policy, history, .. } = &mut *self.lock();
        history.admit(*policy, list, count, Instant::now())
    }

    /// [`History::count`] now.
    pub(super) fn count(&self, new: usize) {
        let State { policy, history, .. } = &mut *self.lock();
        history.count(*policy, new, Instant::now());
    }

    /// Ends the start of new workers, and waits for the threads. The session takes no commands any more.
    pub(super) fn finish(&self, table: &ReplyTable) {
        table.fleet(Fleet::end);
        // A lane that starts gives up.
        let starting = self.lock().starting.clone();
        give_up(&starting);
        table.fleet_changed.notify(usize::MAX);
        let threads = std::mem::take(&mut self.lock().threads);
        threads.into_iter().for_each(|thread| _ = thread.join());
        self.take_ready().iter().for_each(|ready| end(&ready.lanes));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.0)
    }
}

/// Ends the start of lanes.
fn give_up(starting: &[Arc<dyn Channel>]) {
    starting.iter().for_each(|lane| _ = lane.close(Duration::ZERO));
}

/// The error of a start that has panicked.
pub(super) fn panicked(operation: &str) -> Error {
    Error::state(format!("{operation}: the start of new workers panicked"))
}

/// The error of a start for which the system refuses a thread.
pub(super) fn no_thread(operation: &str, error: io::Error) -> Error {
    Error::system(format!("{operation}: no thread for the start of new workers"), error)
}
