//! The fleet behind the lock of the table: checks before commands, and the epochs that end a loss.

use std::sync::atomic::Ordering;

use super::table::ReplyTable;
use crate::error::{Error, Result};
use crate::stream::fleet::Fleet;

impl ReplyTable {
    /// Reads or changes what the session knows of its workers.
    pub(crate) fn fleet<T>(&self, go: impl FnOnce(&mut Fleet) -> T) -> T {
        let mut state = self.lock();
        let result = go(&mut state.fleet);
        let has_failed = state.failure.is_some() || state.fleet.why().is_some();
        // All callers read it.
        if self.failed.load(Ordering::Relaxed) != has_failed {
            self.failed.store(has_failed, Ordering::Release);
        }
        result
    }

    /// Whether the session takes no commands, because of a failure, a loss or a change of its workers.
    pub(crate) fn takes_no_commands(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Fails for the program's function that restores a worker only: accepts any state of the session.
    pub(crate) fn check_thread(&self) -> Result<()> {
        self.lock().fleet.check_thread()
    }

    /// Fails if there are losses whose replacement has not begun. For the first commands of new workers.
    pub(crate) fn check_replaced(&self) -> Result<()> {
        self.lock().fleet.loss().cloned().map_or(Ok(()), Err)
    }

    /// The number of the epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// A method has returned the failure of this epoch.
    pub(crate) fn note_failure_told(&self) {
        self.lock().is_told = true;
    }

    /// Fails with a failure of a worker that no method has returned.
    pub(crate) fn check_told(&self) -> Result<()> {
        let state = self.lock();
        match &state.failure {
            Some(failure) if !state.is_told => Err(Error::Worker(failure.clone())),
            _ => Ok(()),
        }
    }

    /// Begins the next epoch of a session that takes no commands before [`Self::revive`].
    pub(crate) fn begin_next_epoch(&self) -> u64 {
        self.lock().begin_epoch()
    }

    /// [`Fleet::revive`], and wakes the callers that wait for it.
    pub(crate) fn revive(&self) -> Option<Option<Error>> {
        let untold = self.fleet(Fleet::revive)?;
        self.has_capacity.notify(usize::MAX);
        Some(untold)
    }
}
