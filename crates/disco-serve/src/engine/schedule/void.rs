//! Going on after a failure of the workers.

use std::collections::BTreeMap;

use super::super::blocks::{BLOCK_TOKENS, Blocks};
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::step::SequenceId;

/// So many failures from outside without progress of a sequence count as one of its steps: the system may end workers for
/// the memory that the sequence needs.
pub(super) const OUTSIDE_FAILURES: u32 = 8;

/// What a failure meant for the sequences that took part in the failed steps.
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
    /// Forgets all flights, whose steps have failed. Then [`go_back`](Self::go_back) or [`forget`](Self::forget) says what the workers still
    /// have, before the next plan.
    ///
    /// A sequence that takes part in a second failure before it has got past the position of the first one is a suspect.
    /// From then on suspects run one at a time, and nothing else does, until each has got past the position at which it
    /// failed. If steps fail that nothing but a suspect takes part in, then the suspect is abandoned. A failure from outside
    /// makes no suspects, unless it comes again and again.
    pub fn fail(&mut self, source: Source) -> Voided {
        let mut failed_at = BTreeMap::new();
        for row in self.flights.drain(..).flat_map(|flight| flight.rows) {
            let position = failed_at.entry(row.id).or_insert(row.fails_at);
            *position = row.fails_at.max(*position);
        }
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

    /// The workers have lost everything: all blocks and the prefix cache. All sequences wait, with the texts that they have so far.
    pub fn forget(&mut self) {
        self.release_all();
        self.blocks.forget();
        self.states.iter_mut().for_each(Blocks::forget);
    }

    fn release_all(&mut self) {
        let residents: Vec<SequenceId> = self.residents().map(|(id, _)| id).collect();
        residents.into_iter().for_each(|id| self.release(id));
    }

    /// The workers have the keys and values of all steps that were replied to, and nothing else. All sequences go on behind their last
    /// reply, so what the failed steps have written is written again before it is read. Blocks that others may find are not
    /// written: those steps were replied to.
    ///
    /// Sequences whose states each step changes wait, and go on behind the last state that is kept.
    pub fn go_back(&mut self) {
        if self.states.is_some() {
            return self.release_all();
        }
        for resident in self.sequences.values_mut().filter_map(|sequence| sequence.resident.as_mut()) {
            let unused = resident.table.split_off(resident.computed.div_ceil(BLOCK_TOKENS));
            self.blocks.release(&unused);
            (resident.planned, resident.pending) = (resident.computed, 0);
            (resident.holds, resident.is_drafted, resident.is_told) = (false, false, false);
        }
    }
}

impl Sequence {
    /// Counts a failure from outside of a row that ended at `position`. Returns whether it counts as one of the steps.
    fn fails_from_outside(&mut self, position: usize) -> bool {
        self.outside = (self.outside.0 + 1, position.max(self.outside.1));
        self.outside.0.is_multiple_of(OUTSIDE_FAILURES)
    }
}
