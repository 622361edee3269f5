//! Counters of sent and awaited signals, and the waits and copies that streams have not passed yet.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disco_core::sync;
use disco_core::tensor::Storage;
use disco_core::{AbortCause, Error, Rank, Result};

use super::topology::RANKS;
use crate::driver::{Driver, EventHandle};
use crate::runtime::Runtime;

/// Number of independent signals between each two ranks.
pub const SLOTS: usize = 64;
/// The slot of barriers.
pub(super) const BARRIER_SLOT: usize = SLOTS;
/// The slot of the self-test.
pub(super) const SELF_TEST_SLOT: usize = SLOTS + 1;
/// Signal words that are reserved for each peer.
pub(super) const SLOTS_PER_PEER: usize = 2 * SLOTS;

/// Counts signals, equally on both ranks: the n-th wait for a slot waits until its word has reached n.
#[derive(Default)]
pub(super) struct SignalCounters(Mutex<SignalState>);

struct SignalState {
    sent: Counts,
    /// Whether the last signal of each slot was sent on the side stream.
    sent_by_side: [[bool; SLOTS_PER_PEER]; *RANKS.end()],
    awaited: Counts,
    /// Work that may not be complete, in the order of its submission.
    pending: Vec<Pending>,
    /// Events for reuse.
    free_events: Vec<EventHandle>,
    broken: Option<AbortCause>,
}

struct Counts([[u32; SLOTS_PER_PEER]; *RANKS.end()]);

/// Work that was submitted to a stream, with the event behind it.
struct Pending {
    event: EventHandle,
    work: StreamWork,
}

/// Work that a stream may not have passed yet.
pub(super) enum StreamWork {
    /// A wait for the signal of a rank and a slot.
    Wait(usize, usize),
    /// A copy.
    Copy {
        /// The memory of the copy, which is kept until the copy is complete.
        _storage: Arc<Storage>,
    },
}

impl SignalCounters {
    /// Counts a signal to a rank. Returns its number, and whether the previous signal of the slot went by the other
    /// stream.
    pub(super) fn next_sent(&self, to: usize, slot: usize, is_side: bool) -> (u32, bool) {
        let mut state = self.state();
        let by_side = std::mem::replace(&mut state.sent_by_side[to][slot], is_side);
        let number = next(&mut state.sent.0[to][slot]);
        (number, number > 1 && by_side != is_side)
    }

    /// Counts a wait for a signal of a rank. Returns the number of the signal.
    pub(super) fn next_awaited(&self, from: usize, slot: usize) -> u32 {
        next(&mut self.state().awaited.0[from][slot])
    }

    /// Tracks work that was just submitted to a stream, until the stream has passed it.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn track(&self, driver: &dyn Driver, work: StreamWork) -> Result<()> {
        let event = self.take_event(driver)?;
        // Outside of the lock, since this call blocks while the queue of the stream is full.
        // SAFETY: `take_event` returned a live event of this device.
        let recorded = unsafe { driver.record_event(event) };
        self.state().pending.push(Pending { event, work });
        recorded
    }

    /// Makes later work of one stream wait for all earlier work of another.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn order(&self, later: &dyn Driver, earlier: &dyn Driver) -> Result<()> {
        let event = self.take_event(earlier)?;
        // SAFETY: `take_event` returned a live event of this device.
        let recorded = unsafe { earlier.record_event(event) };
        // SAFETY: the event is live. The stream waits for its current recording, so the event can be reused afterwards.
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

    /// Refuses operations after a failure.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub(super) fn check(&self, operation: &str) -> Result<()> {
        match self.state().broken.clone() {
            Some(cause) => Err(Error::Broken { operation: operation.to_owned(), cause }),
            None => Ok(()),
        }
    }

    /// Makes later operations fail with this cause. The first cause stays.
    pub(super) fn mark_broken(&self, cause: &AbortCause) {
        self.state().broken.get_or_insert_with(|| cause.clone());
    }

    /// Describes the first wait that a stream has not passed.
    pub(super) fn stalled_on(&self, driver: &dyn Driver) -> Option<String> {
        let mut state = self.state();
        state.drop_completed(driver);
        state.pending.iter().find_map(|pending| match pending.work {
            StreamWork::Wait(from, BARRIER_SLOT) => {
                Some(format!("{} has not reached the barrier", Rank::new(from as u32)))
            }
            StreamWork::Wait(from, slot) => Some(format!("{} has not signalled slot {slot}", Rank::new(from as u32))),
            StreamWork::Copy { .. } => None,
        })
    }

    /// Ends all waits: writes their words on the stream of the highest priority. `at` returns the address of a word.
    /// Returns whether there were waits.
    pub(super) fn release(&self, runtime: &Runtime, at: impl Fn(usize, usize) -> *mut u32) -> bool {
        let mut state = self.state();
        state.drop_completed(runtime.driver());
        let priority_stream = match runtime.priority_stream() {
            Ok(priority_stream) => priority_stream,
            Err(error) => {
                tracing::warn!(%error, "waits for signals can't be ended: no stream of the highest priority");
                return false;
            }
        };
        let Ok(peers) = priority_stream.peers() else { return false };
        let mut are_any = false;
        for pending in &state.pending {
            let StreamWork::Wait(from, slot) = pending.work else { continue };
            are_any = true;
            // SAFETY: the word is part of this rank's memory, which stays allocated until the streams are done.
            if let Err(error) = unsafe { peers.write_word(at(from, slot), state.awaited.0[from][slot]) } {
                tracing::warn!(%error, "the wait for a signal can't be ended");
            }
        }
        are_any
    }

    /// Destroys the events. All streams are idle.
    pub(super) fn end(self, driver: &dyn Driver) {
        let state = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        for event in state.pending.into_iter().map(|pending| pending.event).chain(state.free_events) {
            // SAFETY: `take_event` created the event, the streams are idle, and it is destroyed once.
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
            // SAFETY: the event is live until `end`. Work that has failed counts as passed.
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

disco_core::format_as!(Debug for SignalCounters, |it| "<{} pieces of work>", it.state().pending.len());
