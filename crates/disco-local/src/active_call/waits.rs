//! The waits of a rank inside a call, and their records in a timeline.

use std::cell::Cell;
use std::time::Duration;

use disco_core::activity::{Activity, DataPath};
use disco_core::{Error, Rank, Result};

use super::ActiveCall;
use crate::failure::Failure;
use crate::report;

impl<'t> ActiveCall<'t> {
    /// Records waits for ranks, and the way of the data, in `activity`.
    pub(crate) fn record_in(&mut self, activity: Option<&'t Activity>) {
        self.activity = activity;
        self.take_path(DataPath::SharedMemory);
    }

    pub(super) fn take_path(&self, path: DataPath) {
        if let Some(activity) = self.activity {
            activity.take_path(path);
        }
    }

    /// Synchronises all ranks inside a collective. Afterwards all earlier writes are visible, and no rank accesses
    /// published memory.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.stop();
        self.counters.step += 1;
        let (board, step) = (self.board(), self.counters.step);
        board.step(self.rank, step);
        board.wake_sleepers();
        self.wait_for_all(|peer| board.has_reached_step(peer, step))
    }

    /// Waits until `ready` returns a value. `report` gives the state for a deadline error.
    pub(crate) fn wait<T>(
        &self,
        ready: impl FnMut() -> Result<Option<T>, Failure>,
        report: impl Fn() -> String,
    ) -> Result<T> {
        let late = |after| self.late(report(), after);
        self.group.wait(self.rank, &self.timeout, ready, late)
    }

    pub(super) fn wait_for_all(&self, has_arrived: impl Fn(usize) -> bool) -> Result<()> {
        let late = |after| self.late(report::missing(self.board(), &has_arrived), after);
        let Some(activity) = self.activity else {
            return self.group.wait_for_all(self.rank, &self.timeout, &has_arrived, late);
        };
        let (since, last) = (activity.start_wait(), Cell::new(None));
        let has_arrived = |peer| {
            let is_here = has_arrived(peer);
            if !is_here {
                last.set(Some(Rank::new(peer as u32)));
            }
            is_here
        };
        let result = self.group.wait_for_all(self.rank, &self.timeout, has_arrived, late);
        if last.get().is_some() {
            activity.waited(since, last.get());
        }
        result
    }

    fn late(&self, state: String, after: Duration) -> Error {
        Error::Deadline { operation: self.call.signature(self.size()), after, state }
    }
}
