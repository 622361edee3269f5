//! Starting over after a failure of the workers.

use std::collections::BTreeMap;

use super::scheduler::Scheduler;
use super::sequence::SequenceId;

/// What a failure meant for the sequences that took part in the failed steps. All others wait, and go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Voided {
    /// These took part, and are continued.
    pub resumed: Vec<SequenceId>,
    /// These have ended. The scheduler has forgotten them.
    pub abandoned: Vec<Abandoned>,
}

/// A sequence that is not continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// The sequence.
    pub id: SequenceId,
    /// Why it is not.
    pub cause: Cause,
}

/// Why a sequence is not continued after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// It was alone in the failed steps, after it had taken part in two failures.
    #[error("the workers failed at position {position} of this request, while no other request was running")]
    Alone {
        /// Where its last row ended.
        position: usize,
    },
    /// It has been continued too often, after failures that no other sequence turned out to cause.
    #[error("the workers failed {failures} times while this request was running")]
    TooManyResumes {
        /// Failures that it took part in.
        failures: u32,
    },
}

impl Scheduler {
    /// Forgets what the workers have: all flights, all blocks and the prefix cache. All sequences wait, with the texts that
    /// they have so far.
    ///
    /// A sequence that takes part in a second failure before it has got past the position of the first one is a suspect.
    /// From then on suspects run one at a time, and nothing else does, until each has got past the position at which it
    /// failed. If steps fail that nothing but a suspect takes part in, then the suspect is abandoned, and the failures that
    /// it took part in no longer count for others.
    pub fn void(&mut self) -> Voided {
        let mut failed_at = BTreeMap::new();
        for row in self.flights.drain(..).flat_map(|flight| flight.rows) {
            let position = failed_at.entry(row.id).or_insert(row.end);
            *position = row.end.max(*position);
        }
        let residents: Vec<SequenceId> = self.residents().map(|(id, _)| id).collect();
        for id in residents {
            self.release(id);
        }
        self.blocks.forget();

        let is_alone = failed_at.len() == 1;
        let failure = self.next_failure;
        self.next_failure += 1;
        let mut voided = Voided::default();
        for (id, position) in failed_at {
            match self.fail(id, failure, position, is_alone) {
                None => {}
                Some(Ok(())) => voided.resumed.push(id),
                Some(Err(cause)) => {
                    if matches!(cause, Cause::Alone { .. }) {
                        self.forgive_failures_with(id);
                    }
                    self.cancel(id);
                    voided.abandoned.push(Abandoned { id, cause });
                }
            }
        }
        voided
    }

    /// Notes that a sequence took part in a failure, if it has not ended, and says why it can't go on.
    fn fail(&mut self, id: SequenceId, failure: u64, position: usize, is_alone: bool) -> Option<Result<(), Cause>> {
        let sequence = self.sequences.get_mut(&id)?;
        if sequence.is_suspect && is_alone {
            return Some(Err(Cause::Alone { position }));
        }
        sequence.failures.push(failure);
        let failures = sequence.failures.len() as u32;
        if failures > self.limits.max_resumes {
            return Some(Err(Cause::TooManyResumes { failures }));
        }
        sequence.is_suspect |= sequence.failed_at.is_some();
        sequence.failed_at = sequence.failed_at.max(Some(position));
        Some(Ok(()))
    }

    /// Forgets, for all sequences, the failures that this one took part in.
    fn forgive_failures_with(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let explained = std::mem::take(&mut sequence.failures);
        for sequence in self.sequences.values_mut() {
            sequence.failures.retain(|failure| !explained.contains(failure));
        }
    }
}
