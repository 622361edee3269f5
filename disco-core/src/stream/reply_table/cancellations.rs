//! Cancellations that not all workers have answered.

use std::sync::Arc;

use super::table::ReplyTable;
use crate::channel::{CallOps, Channel, Signal};
use crate::error::{Error, Result};
use crate::id::WorkerId;

/// The cancellations of one epoch that not all workers have answered.
#[derive(Debug, Default)]
pub(super) struct Cancellations(Vec<Cancellation>);

#[derive(Debug)]
struct Cancellation {
    command: u64,
    why: Arc<str>,
    /// The places of the workers that have not answered.
    missing: Vec<WorkerId>,
    /// Whether a worker has left the call.
    has_left: bool,
    /// The operations of the workers that have answered; [`CallOps::Other`] if they differ.
    ops: Option<CallOps>,
}

impl Cancellation {
    fn answer(&mut self, from: WorkerId, has_left: bool, ops: CallOps) {
        let Some(at) = self.missing.iter().position(|place| *place == from) else { return };
        self.missing.swap_remove(at);
        self.has_left |= has_left;
        self.ops = Some(if self.ops.is_none_or(|known| known == ops) { ops } else { CallOps::Other });
    }

    /// The signal to all workers once all have answered. Their communicators are whole if no worker has left the call, or
    /// all have begun the same operations: then the next ones of all ranks are the same, too.
    fn settle(self) -> Signal {
        let is_broken = self.has_left && self.ops == Some(CallOps::Other);
        Signal::Settle { command: self.command, breaks: is_broken.then_some(self.why) }
    }
}

impl Cancellations {
    /// In a new epoch, no cancellation of an earlier one is settled.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

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
            let known = &mut state.cancellations.0;
            let is_new = known.iter().all(|cancellation| cancellation.command != command);
            if is_new {
                known.push(Cancellation { command, why: why.clone(), missing, has_left: false, ops: None });
            }
            is_new
        };
        if !is_new {
            return Ok(());
        }
        // Without the lock: threads answer at once.
        let told = self.signal_all(&Signal::Cancel { command, cause: why.clone() });
        told.inspect_err(|_| self.lock().cancellations.0.retain(|cancellation| cancellation.command != command))
    }

    /// Notes the answer of the worker with this place. The last answer settles the cancellation.
    pub(super) fn note_cancelled(&self, from: WorkerId, command: u64, has_left: bool, ops: CallOps) {
        let settled = {
            let known = &mut self.lock().cancellations.0;
            let Some(at) = known.iter().position(|cancellation| cancellation.command == command) else { return };
            known[at].answer(from, has_left, ops);
            if !known[at].missing.is_empty() {
                return;
            }
            known.swap_remove(at).settle()
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(answers: &[(bool, CallOps)]) -> bool {
        let missing = (0..answers.len() as u32).map(WorkerId::new).collect();
        let mut it = Cancellation { command: 3, why: "enough".into(), missing, has_left: false, ops: None };
        for (place, (has_left, ops)) in (0..).map(WorkerId::new).zip(answers) {
            it.answer(place, *has_left, *ops);
            // Repeated and foreign answers do not count.
            it.answer(place, true, CallOps::Other);
            it.answer(WorkerId::new(99), true, CallOps::Other);
        }
        assert!(it.missing.is_empty());
        matches!(it.settle(), Signal::Settle { command: 3, breaks: Some(why) } if *why == *"enough")
    }

    #[test]
    fn a_cancellation_breaks_communicators_if_a_worker_has_left_and_operations_differ() {
        use CallOps::{Collectives, Other};
        assert!(settled(&[(true, Collectives(0)), (false, Collectives(1))]));
        assert!(settled(&[(false, Collectives(2)), (true, Collectives(1)), (true, Collectives(2))]));
        assert!(settled(&[(true, Other), (true, Other)]), "operations that were aborted, or are not counted");
        assert!(!settled(&[(true, Collectives(0)), (true, Collectives(0))]), "all have left the call out");
        assert!(!settled(&[(true, Collectives(5)), (false, Collectives(5))]), "the same operations");
        assert!(!settled(&[(false, Other), (false, Collectives(1))]), "all have executed the call");
    }
}
