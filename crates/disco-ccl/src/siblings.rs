//! The ranks of one communicator in this process, and the point after an abort at which none of their kernels touches
//! memory any more.
//!
//! `ncclCommAbort` returns at once for all ranks of a process but the last, and a rank's own kernel ends some time
//! after the call. Until the kernels of all these ranks have ended, they may still write to each other's tensors.
//! Therefore [`Runtime::alloc`] waits after an abort until the library has released the communicator of each rank here
//! and each stream has passed the communicator's kernels.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::sync;

use crate::driver::EventHandle;
use crate::runtime::Runtime;

/// Keyed by the communicator's name.
static COMMUNICATORS: Mutex<BTreeMap<String, Weak<Siblings>>> = Mutex::new(BTreeMap::new());

const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The ranks of one communicator in this process.
pub(crate) struct Siblings(Mutex<Vec<RankTeardown>>);

/// One rank's entry. Dropped when the library has released the rank's communicator.
pub(crate) struct Sibling {
    all: Arc<Siblings>,
    index: usize,
}

struct RankTeardown {
    runtime: Arc<Runtime>,
    progress: TeardownProgress,
}

/// Progress of one rank's teardown.
enum TeardownProgress {
    /// The library has not released the rank's communicator.
    Open,
    /// The library has released the communicator, and the event waits for the end of a capture of the stream.
    Unrecorded,
    /// The library has released the communicator, and the event is recorded behind its last kernel.
    Recorded(EventHandle),
    /// The stream has passed the event.
    Over,
}

impl Sibling {
    /// Adds a rank to the communicator of that name.
    pub(crate) fn new(name: &str, runtime: &Arc<Runtime>) -> Self {
        let mut communicators = sync::lock(&COMMUNICATORS);
        communicators.retain(|_, siblings| siblings.strong_count() > 0);
        let known = communicators.get(name).and_then(Weak::upgrade);
        let all = known.unwrap_or_else(|| Arc::new(Siblings(Mutex::default())));
        communicators.insert(name.to_owned(), Arc::downgrade(&all));
        drop(communicators);
        let mut ranks = all.lock();
        ranks.push(RankTeardown { runtime: runtime.clone(), progress: TeardownProgress::Open });
        let index = ranks.len() - 1;
        drop(ranks);
        Self { all, index }
    }

    /// All ranks of the communicator in this process.
    pub(crate) fn all(&self) -> &Arc<Siblings> {
        &self.all
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        let mut ranks = self.all.lock();
        if let Some(state) = ranks.get_mut(self.index) {
            state.progress = TeardownProgress::of(&state.runtime);
        }
    }
}

impl Siblings {
    /// Waits at most `limit` until no kernel of the communicator touches memory any more. Returns whether that is so.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while !self.are_over() {
            if start.elapsed() > limit {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
        true
    }

    fn are_over(&self) -> bool {
        self.lock().iter_mut().all(|RankTeardown { runtime, progress }| progress.is_over(runtime))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RankTeardown>> {
        sync::lock(&self.0)
    }
}

impl TeardownProgress {
    /// Records an event on the rank's stream. If that fails, the rank's kernels count as over.
    fn of(runtime: &Runtime) -> Self {
        if runtime.is_capturing().unwrap_or(false) {
            return Self::Unrecorded;
        }
        let (driver, mut progress) = (runtime.driver(), Self::Over);
        driver.with_current(&mut || {
            let Ok(event) = driver.create_event() else { return };
            progress = Self::Recorded(event);
            // SAFETY: the event was just created, and is destroyed only when it is complete.
            if let Err(error) = unsafe { driver.record_event(event) } {
                tracing::debug!(%error, "no event can be recorded at the end of a communicator");
            }
        });
        progress
    }

    fn is_over(&mut self, runtime: &Runtime) -> bool {
        if let Self::Unrecorded = *self {
            *self = Self::of(runtime);
        }
        if let Self::Recorded(event) = *self {
            let driver = runtime.driver();
            driver.with_current(&mut || {
                // SAFETY: the event is live. Work that has failed counts as complete.
                if unsafe { driver.is_event_complete(event) }.unwrap_or(true) {
                    // SAFETY: this driver created the event, and this is its last use.
                    unsafe { driver.destroy_event(event) };
                    *self = Self::Over;
                }
            });
        }
        matches!(self, Self::Over)
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        for RankTeardown { runtime, progress } in self.lock().iter() {
            let (TeardownProgress::Recorded(event), driver) = (progress, runtime.driver()) else { continue };
            // SAFETY: this driver created the event, and this is its last use.
            driver.with_current(&mut || unsafe { driver.destroy_event(*event) });
        }
    }
}

disco_core::format_as!(Debug for Sibling, |it| "<number {} of a communicator's ranks in this process>", it.index);
