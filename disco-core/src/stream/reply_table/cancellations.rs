//! Cancellations that not all workers have answered.

use std::sync::Arc;

use crate::channel::{CallOps, Signal};
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
    /// Begins the cancellation of a call, which workers with these places have to answer. False if one has begun.
    pub(super) fn begin(&mut self, command: u64, why: &Arc<str>, missing: Vec<WorkerId>) -> bool {
        let is_new = self.0.iter().all(|cancellation| cancellation.command != command);
        if is_new {
            self.0.push(Cancellation { command, why: why.clone(), missing, has_left: false, ops: None });
        }
        is_new
    }

    /// Forgets a cancellation, which not all workers can be told of.
    pub(super) fn withdraw(&mut self, command: u64) {
        self.0.retain(|cancellation| cancellation.command != command);
    }

    /// Notes an answer. With the last one, the signal to all workers.
    pub(super) fn answer(&mut self, from: WorkerId, command: u64, has_left: bool, ops: CallOps) -> Option<Signal> {
        let at = self.0.iter().position(|cancellation| cancellation.command == command)?;
        self.0[at].answer(from, has_left, ops);
        self.0[at].missing.is_empty().then(|| self.0.swap_remove(at).settle())
    }

    /// In a new epoch, no cancellation of an earlier one is settled.
    pub(super) fn clear(&mut self) {
        self.0.clear();
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
