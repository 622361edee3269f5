//! Cancels calls: all workers are told, and told again once all have answered.

use std::sync::Arc;

use super::table::ReplyTable;
use crate::channel::{CallOps, Channel, Signal};
use crate::error::{Error, Result};
use crate::id::WorkerId;

impl ReplyTable {
    /// Tells all workers that a call is cancelled. A worker that has ended the call answers only. Does nothing while they
    /// answer an earlier cancellation of the call.
    ///
    /// # Errors
    /// A lane is closed, or its workers do not understand cancellations.
    pub(crate) fn cancel(&self, command: u64, why: &Arc<str>) -> Result<()> {
        let is_new = {
            let mut state = self.lock();
            let missing = state.members.places().collect();
            state.cancellations.begin(command, why, missing)
        };
        if !is_new {
            return Ok(());
        }
        // Without the lock: threads answer at once.
        let told = self.signal_all(&Signal::Cancel { command, cause: why.clone() });
        told.inspect_err(|_| self.lock().cancellations.withdraw(command))
    }

    /// Notes the answer of the worker with this place. The last answer settles the cancellation.
    pub(super) fn note_cancelled(&self, from: WorkerId, command: u64, has_left: bool, ops: CallOps) {
        let settled = self.lock().cancellations.answer(from, command, has_left, ops);
        let Some(settled) = settled else { return };
        if let Err(error) = self.signal_all(&settled) {
            tracing::debug!(%error, command, "not all workers can be told that a cancellation is settled");
        }
    }

    /// Passes a signal to all lanes. Returns the first error.
    fn signal_all(&self, signal: &Signal) -> Result<()> {
        let tell = |lane: &Arc<dyn Channel>| lane.signal(signal.clone());
        self.lanes().iter().map(tell).fold(Ok(()), Result::<(), Error>::and)
    }
}
