//! What a rank has signalled and waits for, and what its streams have not passed yet.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disco_core::sync;
use disco_core::tensor::Storage;
use disco_core::{Error, Rank, Result};

use super::topology::RANKS;
use crate::driver::{Driver, Mark};
use crate::runtime::Runtime;

/// Signals that two ranks have, each for itself.
pub const SLOTS: usize = 64;
/// The one that barriers have.
pub(super) const BARRIER: usize = SLOTS;
/// The one by which ranks find out whether words come through.
pub(super) const PROOF: usize = SLOTS + 1;
/// Words of each peer.
pub(super) const ROW: usize = 2 * SLOTS;

/// Counts, alike on both ranks: the n-th wait for a slot is for its n-th signal.
#[derive(Default)]
pub(super) struct Words(Mutex<State>);

struct State {
    sent: Counts,
    /// Signals whose last one was sent by the lane at the side.
    sent_by_side: [[bool; ROW]; *RANKS.end()],
    awaited: Counts,
    /// In the order in which they were enqueued.
    pending: Vec<Pending>,
    /// Marks to be set again.
    spare: Vec<Mark>,
    broken: Option<Arc<str>>,
}

struct Counts([[u32; ROW]; *RANKS.end()]);

/// Something that a stream has not passed, as far as is known.
struct Pending {
    mark: Mark,
    what: Held,
}

/// What that is.
pub(super) enum Held {
    /// A wait for a rank's signal.
    Wait(usize, usize),
    /// A copy, and the memory that it needs.
    Copy {
        /// Kept, and nothing else.
        _storage: Arc<Storage>,
    },
}

impl Words {
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
    pub(super) fn hold(&self, driver: &dyn Driver, what: Held) -> Result<()> {
        let mark = self.mark(driver)?;
        // Not under the lock: a stream with too much to do has its callers wait.
        // SAFETY: it is there.
        let recorded = unsafe { driver.record(mark) };
        self.state().pending.push(Pending { mark, what });
        recorded
    }

    /// Lets one stream wait for all that another has been given.
    ///
    /// # Errors
    /// The driver's own.
    pub(super) fn order(&self, later: &dyn Driver, earlier: &dyn Driver) -> Result<()> {
        let mark = self.mark(earlier)?;
        // SAFETY: it is there.
        let recorded = unsafe { earlier.record(mark) };
        // SAFETY: as above; a stream waits for what was recorded when it was told to.
        let ordered = recorded.and_then(|()| unsafe { later.wait_for(mark) });
        self.state().spare.push(mark);
        ordered
    }

    fn mark(&self, driver: &dyn Driver) -> Result<Mark> {
        let mut state = self.state();
        state.forget_passed(driver);
        match state.spare.pop() {
            Some(mark) => Ok(mark),
            None => driver.mark(),
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
    pub(super) fn break_off(&self, cause: &Arc<str>) {
        self.state().broken.get_or_insert_with(|| cause.clone());
    }

    /// The first wait that a stream has not passed, in words.
    pub(super) fn stuck(&self, driver: &dyn Driver) -> Option<String> {
        let mut state = self.state();
        state.forget_passed(driver);
        state.pending.iter().find_map(|pending| match pending.what {
            Held::Wait(from, BARRIER) => Some(format!("{} has not come to the barrier", Rank::new(from as u32))),
            Held::Wait(from, slot) => Some(format!("{} has not signalled slot {slot}", Rank::new(from as u32))),
            Held::Copy { .. } => None,
        })
    }

    /// Ends all waits, by writing what they wait for, on the stream of the highest priority: `at` says where. Whether there were any.
    pub(super) fn release(&self, runtime: &Runtime, at: impl Fn(usize, usize) -> *mut u32) -> bool {
        let mut state = self.state();
        state.forget_passed(runtime.driver());
        let urgent = match runtime.urgent() {
            Ok(urgent) => urgent,
            Err(error) => {
                tracing::warn!(%error, "streams may wait for ever");
                return false;
            }
        };
        let Ok(peers) = urgent.peers() else { return false };
        let mut are_any = false;
        for pending in &state.pending {
            let Held::Wait(from, slot) = pending.what else { continue };
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
        for mark in state.pending.into_iter().map(|pending| pending.mark).chain(state.spare) {
            // SAFETY: it was made here, and is destroyed once.
            unsafe { driver.destroy(mark) };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.0)
    }
}

impl State {
    fn forget_passed(&mut self, driver: &dyn Driver) {
        let passed = self.pending.extract_if(.., |pending| {
            // SAFETY: the mark is there. One that has failed is as good as passed.
            unsafe { driver.has_passed(pending.mark) }.unwrap_or(true)
        });
        self.spare.extend(passed.map(|pending| pending.mark));
    }
}

impl Default for State {
    fn default() -> Self {
        let counts = || Counts([[0; ROW]; *RANKS.end()]);
        let sent_by_side = [[false; ROW]; *RANKS.end()];
        let (pending, spare, broken) = (Vec::new(), Vec::new(), None);
        Self { sent: counts(), sent_by_side, awaited: counts(), pending, spare, broken }
    }
}

fn next(count: &mut u32) -> u32 {
    *count = count.wrapping_add(1);
    *count
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} pieces of work>", self.state().pending.len())
    }
}
