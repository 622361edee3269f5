//! What a rank has signalled and waits for, and what its streams have not passed yet.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disco_core::sync;
use disco_core::tensor::Storage;
use disco_core::{Error, Rank, Result};

use super::topology::RANKS;
use crate::driver::{Driver, EventHandle};
use crate::runtime::Runtime;

/// Signals that two ranks have, each for itself.
pub const SLOTS: usize = 64;
/// The one that barriers have.
pub(super) const BARRIER_SLOT: usize = SLOTS;
/// The one by which ranks find out whether words come through.
pub(super) const SELF_TEST_SLOT: usize = SLOTS + 1;
/// SignalCounters of each peer.
pub(super) const SLOTS_PER_PEER: usize = 2 * SLOTS;

/// Counts, alike on both ranks: the n-th wait for a slot is for its n-th signal.
#[derive(Default)]
pub(super) struct SignalCounters(Mutex<SignalState>);

struct SignalState {
    sent: Counts,
    /// Signals whose last one was sent by the lane at the side.
    sent_by_side: [[bool; SLOTS_PER_PEER]; *RANKS.end()],
    awaited: Counts,
    /// In the order in which they were enqueued.
    pending: Vec<Pending>,
    /// Marks to be set again.
    free_events: Vec<EventHandle>,
    broken: Option<Arc<str>>,
}

struct Counts([[u32; SLOTS_PER_PEER]; *RANKS.end()]);

/// Something that a stream has not passed, as far as is known.
struct Pending {
    event: EventHandle,
    work: StreamWork,
}

/// What that is.
pub(super) enum StreamWork {
    /// A wait for a rank's signal.
    Wait(usize, usize),
    /// A copy, and the memory that it needs.
    Copy {
        /// Kept, and nothing else.
        _storage: Arc<Storage>,
    },
}

impl SignalCounters {
    /// The number of the next signal to a rank, and whether the one before went by the other lane.
    pub(super) fn next_sent(&self, to: usize, slot: usize, is_side: bool) -> (u32, bool) {
        let mut state = self.state();
        let by_side = std::mem::replace(&mut state.sent_by_side[to][slot], is_side);
        let number = next(&mut state.sent.0[to][slot]);
        (number, number > 1 && by_side != is_side)
    }

    /// The number of the next signal from a rank.
    pub(super) fn next_awaited(&self, from: usize, slot: usize) -> u32 {
        next(&mut self.state().awaited.0[from][slot])
    }

    /// Remembers what a stream has just been given, until it has passed that.
    ///
    /// # Errors
    /// The driver's own.
    pub(super) fn track(&self, driver: &dyn Driver, work: StreamWork) -> Result<()> {
        let event = self.take_event(driver)?;
        // Not under the lock: a stream with too much to do has its callers wait.
        // SAFETY: it is there.
        let recorded = unsafe { driver.record_event(event) };
        self.state().pending.push(Pending { event, work });
        recorded
    }

    /// Lets one stream wait for all that another has been given.
    ///
    /// # Errors
    /// The driver's own.
    pub(super) fn order(&self, later: &dyn Driver, earlier: &dyn Driver) -> Result<()> {
        let event = self.take_event(earlier)?;
        // SAFETY: it is there.
        let recorded = unsafe { earlier.record_event(event) };
        // SAFETY: as above; a stream waits for what was recorded when it was told to.
        let ordered = recorded.and_then(|()| unsafe { later.wait_event(event) });
        self.state().free_events.push(event);
        ordered
    }

    fn take_event(&self, driver: &dyn Driver) -> Result<EventHandle> {
        let mut state = self.state();
        state.drop_completed(driver);
        match state.free_events.pop() {
            Some(event) => Ok(event),
            None => driver.create_event(),
        }
    }

    /// Refuses more where something has failed.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub(super) fn check(&self, operation: &str) -> Result<()> {
        match self.state().broken.clone() {
            Some(cause) => Err(Error::Broken { operation: operation.to_owned(), cause }),
            None => Ok(()),
        }
    }

    /// Nothing more is enqueued.
    pub(super) fn mark_broken(&self, cause: &Arc<str>) {
        self.state().broken.get_or_insert_with(|| cause.clone());
    }

    /// The first wait that a stream has not passed, in words.
    pub(super) fn stalled_on(&self, driver: &dyn Driver) -> Option<String> {
        let mut state = self.state();
        state.drop_completed(driver);
        state.pending.iter().find_map(|pending| match pending.work {
            StreamWork::Wait(from, BARRIER_SLOT) => {
                Some(format!("{} has not come to the barrier", Rank::new(from as u32)))
            }
            StreamWork::Wait(from, slot) => Some(format!("{} has not signalled slot {slot}", Rank::new(from as u32))),
            StreamWork::Copy { .. } => None,
        })
    }

    /// Ends all waits, by writing what they wait for, on the stream of the highest priority: `at` says where. Whether there were any.
    pub(super) fn release(&self, runtime: &Runtime, at: impl Fn(usize, usize) -> *mut u32) -> bool {
        let mut state = self.state();
        state.drop_completed(runtime.driver());
        let priority_stream = match runtime.priority_stream() {
            Ok(priority_stream) => priority_stream,
            Err(error) => {
                tracing::warn!(%error, "streams may wait for ever");
                return false;
            }
        };
        let Ok(peers) = priority_stream.peers() else { return false };
        let mut are_any = false;
        for pending in &state.pending {
            let StreamWork::Wait(from, slot) = pending.work else { continue };
            are_any = true;
            // SAFETY: the word is part of this rank's memory, which stays until the streams are done.
            if let Err(error) = unsafe { peers.write_word(at(from, slot), state.awaited.0[from][slot]) } {
                tracing::warn!(%error, "a stream may wait for ever");
            }
        }
        are_any
    }

    /// When no stream has anything to do.
    pub(super) fn end(self, driver: &dyn Driver) {
        let state = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        for event in state.pending.into_iter().map(|pending| pending.event).chain(state.free_events) {
            // SAFETY: it was made here, and is destroyed once.
            unsafe { driver.destroy_event(event) };
        }
    }

    fn state(&self) -> MutexGuard<'_, SignalState> {
        sync::lock(&self.0)
    }
}

impl SignalState {
    fn drop_completed(&mut self, driver: &dyn Driver) {
        let passed = self.pending.extract_if(.., |pending| {
            // SAFETY: the event is there. One that has failed is as good as passed.
            unsafe { driver.is_event_complete(pending.event) }.unwrap_or(true)
        });
        self.free_events.extend(passed.map(|pending| pending.event));
    }
}

impl Default for SignalState {
    fn default() -> Self {
        let counts = || Counts([[0; SLOTS_PER_PEER]; *RANKS.end()]);
        let sent_by_side = [[false; SLOTS_PER_PEER]; *RANKS.end()];
        let (pending, free_events, broken) = (Vec::new(), Vec::new(), None);
        Self { sent: counts(), sent_by_side, awaited: counts(), pending, free_events, broken }
    }
}

fn next(count: &mut u32) -> u32 {
    *count = count.wrapping_add(1);
    *count
}

impl fmt::Debug for SignalCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} pieces of work>", self.state().pending.len())
    }
}
