//! Starting over after a failure of the workers.

use std::collections::BTreeMap;

use super::super::blocks::Blocks;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::step::SequenceId;

/// So many failures from outside without progress of a sequence count as one of its steps: the system may end workers for
/// the memory that the sequence needs.
pub(super) const OUTSIDE_FAILURES: u32 = 8;

/// What a failure meant for the sequences that took part in the failed steps. All others wait, and go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Voided {
    /// These took part, and are continued.
    pub resumed: Vec<SequenceId>,
    /// This one has ended. The scheduler has forgotten it.
    pub abandoned: Option<Abandoned>,
}

/// A sequence that is not continued: it was alone in the failed steps, after it had taken part in two failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// The sequence.
    pub id: SequenceId,
    /// Where its last row ended.
    pub position: usize,
}

/// Where a failure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A sequence of the failed steps can have caused it.
    Steps,
    /// Most likely something else, such as a signal to a worker.
    Outside,
}

impl Scheduler {
    /// Forgets what the workers have: all flights, all blocks and the prefix cache. All sequences wait, with the texts that
    /// they have so far.
    ///
    /// A sequence that takes part in a second failure before it has got past the position of the first one is a suspect.
    /// From then on suspects run one at a time, and nothing else does, until each has got past the position at which it
    /// failed. If steps fail that nothing but a suspect takes part in, then the suspect is abandoned. A failure from outside
    /// makes no suspects, unless it comes again and again.
    pub fn void(&mut self, source: Source) -> Voided {
        let mut failed_at = BTreeMap::new();
        for row in self.flights.drain(..).flat_map(|flight| flight.rows) {
            let position = failed_at.entry(row.id).or_insert(row.fails_at);
            *position = row.fails_at.max(*position);
        }
        let residents: Vec<SequenceId> = self.residents().map(|(id, _)| id).collect();
        for id in residents {
            self.release(id);
        }
        self.blocks.forget();
        self.states.iter_mut().for_each(Blocks::forget);

        let is_alone = failed_at.len() == 1;
        let mut voided = Voided::default();
        for (id, position) in failed_at {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            if source == Source::Steps || sequence.fails_from_outside(position) {
                if sequence.is_suspect && is_alone {
                    self.cancel(id);
                    voided.abandoned = Some(Abandoned { id, position });
                    continue;
                }
                sequence.is_suspect |= sequence.failed_at.is_some();
                sequence.failed_at = sequence.failed_at.max(Some(position));
            }
            voided.resumed.push(id);
        }
        voided
    }
}

impl Sequence {
    /// Counts a failure from outside of a row that ended at `position`. Returns whether it counts as one of the steps.
    fn fails_from_outside(&mut self, position: usize) -> bool {
        self.outside = (self.outside.0 + 1, position.max(self.outside.1));
        self.outside.0.is_multiple_of(OUTSIDE_FAILURES)
    }
}
