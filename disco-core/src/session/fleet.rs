//! The workers of a session as a fleet: who changes them, what the policy permits, and what callers have yet to hear.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use event_listener::Event;

use super::DRef;
use super::new_lanes::{NewLane, end};
use super::replacement_policy::{ReplacementPolicy, When};
use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;
use crate::metrics;
use crate::sync;
use crate::value::Value;
use crate::worker_range::WorkerRange;
use crate::world::World;

/// What a session knows of the changes of its workers.
#[derive(Default)]
pub(super) struct Fleet {
    policy: ReplacementPolicy,
    state: Mutex<State>,
    /// Notified when a change ends, and when the session ends.
    pub(super) is_free: Event,
}

#[derive(Default)]
struct State {
    /// The change under way: a caller replaces workers, or new ones start for a caller that has dropped its future.
    change: Option<Change>,
    /// The session ends: no lane starts any more.
    is_over: bool,
    /// New workers that have started before a caller asks for them, in the order of their losses.
    prepared: Vec<Prepared>,
    /// The last attempt to replace workers has failed: the next one is a caller's.
    has_failed: bool,
    /// Times of replacements within the time of the policy's limit.
    history: VecDeque<Instant>,
    /// Returns the registers of a new worker, with their values.
    restore: Option<Restore>,
    /// Places of new workers whose registers are not restored.
    to_restore: BTreeSet<WorkerId>,
    /// Places of new workers that no call has returned yet.
    unreported: BTreeSet<WorkerId>,
    /// The workers that the last call has returned; `None` before the first one.
    reported: Option<Members>,
    /// The workers have changed since the start, so that new ones have to be told their numbers.
    is_resized: bool,
    /// Threads that start lanes, or close lanes that the session no longer uses.
    threads: Vec<JoinHandle<()>>,
}

/// A change of the workers.
#[derive(Default)]
struct Change {
    /// Lanes that start.
    starting: Vec<Arc<dyn Channel>>,
    purpose: Purpose,
}

/// Why new workers start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A caller has asked for them.
    #[default]
    Asked,
    /// They are ready before a caller asks for them.
    Prepared,
    /// They were to be ready, but are not used.
    Stopped,
}

/// New workers that no caller has given their places yet.
pub(super) struct Prepared {
    /// The lost workers, which were taken out of the table.
    pub(super) lost: BTreeSet<WorkerId>,
    pub(super) lanes: Vec<NewLane>,
}

pub(super) type Restore = Arc<dyn Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync>;

/// Makes a lane, not started, to new workers: to their places, in the world that they join.
pub type Growth = Arc<dyn Fn(WorkerRange, World) -> Result<Arc<dyn Channel>> + Send + Sync>;

/// A caller that changes workers, or a thread that starts them.
pub(super) struct Busy(Arc<Fleet>);

impl Busy {
    pub(super) fn fleet(&self) -> &Fleet {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let over = self.0.lock().change.take();
        drop(over);
        self.0.is_free.notify(usize::MAX);
    }
}

impl Fleet {
    pub(super) fn new(policy: ReplacementPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Whether [`Session::recover`](super::Session::recover) replaces lost workers.
    pub(super) fn replaces_on_recovery(&self) -> bool {
        self.policy.when == When::Recovered
    }

    /// Whether workers are replaced before a program asks for it.
    pub(super) fn replaces_at_once(&self) -> bool {
        self.policy.when == When::AtOnce
    }

    /// Begins a change. Returns none if another caller or thread is at it.
    pub(super) fn try_begin(self: &Arc<Self>) -> Option<Arc<Busy>> {
        let mut state = self.lock();
        if state.change.is_some() {
            return None;
        }
        state.change = Some(Change::default());
        Some(Arc::new(Busy(self.clone())))
    }

    /// These lanes are about to start, for [`Self::stop_preparing`] and [`Self::finish`]; empty if none starts any more.
    pub(super) fn note_starting(&self, lanes: Vec<Arc<dyn Channel>>) {
        if let Some(change) = &mut self.lock().change {
            change.starting = lanes;
        }
    }

    /// The change starts workers before a caller asks for them.
    pub(super) fn note_preparing(&self) {
        if let Some(change) = &mut self.lock().change {
            change.purpose = Purpose::Prepared;
        }
    }

    /// Ends [`Self::note_preparing`]. Returns whether the new workers are not used.
    pub(super) fn has_stopped_preparing(&self) -> bool {
        let mut state = self.lock();
        state.change.as_mut().map(|change| std::mem::take(&mut change.purpose)) == Some(Purpose::Stopped)
    }

    /// Gives up the start of workers that no caller has asked for, so that a resize need not wait for it.
    pub(super) fn stop_preparing(&self) {
        let starting = {
            let mut state = self.lock();
            let Some(change) = state.change.as_mut().filter(|change| change.purpose == Purpose::Prepared) else {
                return;
            };
            change.purpose = Purpose::Stopped;
            change.starting.clone()
        };
        // At the end of the session, `finish` gives them up.
        _ = self.spawn("disco-close", move || starting.iter().for_each(|lane| _ = lane.close(Duration::ZERO)));
    }

    /// Whether workers in some of the places of `lost` have started before a caller asks for them.
    pub(super) fn has_prepared(&self, lost: &BTreeSet<WorkerId>) -> bool {
        self.lock().prepared.iter().any(|prepared| !prepared.lost.is_disjoint(lost))
    }

    /// Keeps new workers until a caller gives them their places.
    pub(super) fn keep_prepared(&self, prepared: Prepared) {
        self.lock().prepared.push(prepared);
    }

    /// The new workers that have started before a caller asked for them.
    pub(super) fn take_prepared(&self) -> Vec<Prepared> {
        std::mem::take(&mut self.lock().prepared)
    }

    /// Whether the last attempt to replace workers has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    pub(super) fn set_failed(&self, has_failed: bool) {
        self.lock().has_failed = has_failed;
    }

    pub(super) fn set_restore(&self, restore: Restore) {
        let before = self.lock().restore.replace(restore);
        // Code of the program, which may use the session.
        drop(before);
    }

    /// A new worker, by its place, whose registers are to be restored, and the program's function for that.
    pub(super) fn next_to_restore(&self) -> Option<(WorkerId, Option<Restore>)> {
        let state = self.lock();
        Some((state.to_restore.first().copied()?, state.restore.clone()))
    }

    pub(super) fn note_restored(&self, place: WorkerId) {
        self.lock().to_restore.remove(&place);
    }

    /// What no call has returned yet: the workers before, unless no call has returned any, and the places of new ones. They
    /// count as returned from now on, when the workers are `members`.
    pub(super) fn take_unreported(&self, members: &Members) -> (Option<Members>, BTreeSet<WorkerId>) {
        let mut state = self.lock();
        (state.reported.replace(members.clone()), std::mem::take(&mut state.unreported))
    }

    /// Checks the policy.
    ///
    /// # Errors
    /// The policy forbids it.
    pub(super) fn admit(&self, list: &str, lost: usize) -> Result<()> {
        if self.policy.when == When::Never {
            return Err(Error::state(format!(
                "replace_lost: {list}: the session never replaces workers (`ReplacementPolicy`)"
            )));
        }
        let Some((most, within)) = self.policy.limit else { return Ok(()) };
        let history = &mut self.lock().history;
        history.retain(|at| at.elapsed() < within);
        if history.len() + lost <= most as usize {
            return Ok(());
        }
        let before = history.len();
        Err(Error::state(format!(
            "replace_lost: {list}: {before} workers were replaced within {within:?}, and the limit is {most} \
             (`ReplacementPolicy::at_most`)"
        )))
    }

    /// Counts new workers that have started, for the policy's limit.
    pub(super) fn count(&self, new: usize) {
        if self.policy.limit.is_some() {
            self.lock().history.extend(std::iter::repeat_n(Instant::now(), new));
        }
    }

    /// Records that the workers with these places were replaced.
    pub(super) fn note_replaced(&self, new: BTreeSet<WorkerId>) {
        metrics::replaced(new.len());
        let mut state = self.lock();
        state.to_restore.extend(&new);
        state.unreported.extend(new);
    }

    /// Records that the session has dropped workers or dismissed them, and that others are new.
    pub(super) fn note_resized(&self, gone: &[WorkerId], new: WorkerRange) {
        let mut state = self.lock();
        state.is_resized = true;
        let State { to_restore, unreported, .. } = &mut *state;
        for places in [to_restore, unreported] {
            gone.iter().for_each(|place| _ = places.remove(place));
            places.extend(new);
        }
    }

    /// Whether the workers have changed since the start.
    pub(super) fn is_resized(&self) -> bool {
        self.lock().is_resized
    }

    /// Runs `work`, which blocks, on a thread that the end of the session waits for.
    pub(super) fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name(name.into()).spawn(work);
        let thread = thread.map_err(|error| Error::system("replace_lost: no thread", error))?;
        let threads = &mut self.lock().threads;
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Whether the session ends.
    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Ends the start of new workers, and waits for the threads. The session takes no commands any more.
    pub(super) fn finish(&self) {
        let starting = {
            let mut state = self.lock();
            state.is_over = true;
            state.change.as_ref().map(|change| change.starting.clone()).unwrap_or_default()
        };
        // A lane that starts gives up.
        starting.iter().for_each(|lane| _ = lane.close(Duration::ZERO));
        self.is_free.notify(usize::MAX);
        let threads = std::mem::take(&mut self.lock().threads);
        threads.into_iter().for_each(|thread| _ = thread.join());
        self.take_prepared().iter().for_each(|prepared| end(&prepared.lanes));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("policy", &self.policy).finish_non_exhaustive()
    }
}
