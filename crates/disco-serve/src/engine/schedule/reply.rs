//! Following the replies of steps.

use std::ops::Range;

use super::super::blocks::BLOCK_TOKENS;
use super::super::request::End;
use super::scheduler::Scheduler;
use super::step::FlightRow;
use super::step::SequenceId;

/// A token that the workers chose for a row. A row has one; a row with guesses has the right guesses and the next token, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The row's slot.
    pub slot: u32,
    /// The token; `None` if the model's output was not finite, so that none could be chosen.
    pub token: Option<u32>,
}

/// What a row of a successful step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The sequence, which had not ended before.
    pub id: SequenceId,
    /// The row's slot in this step.
    pub slot: u32,
    /// The positions of the row's tokens.
    pub positions: Range<usize>,
    /// The next token of the text, if the row chose one.
    pub token: Option<u32>,
    /// Set in a sequence's last outcome. The scheduler has forgotten the sequence.
    pub end: Option<Ended>,
}

/// How a sequence ended in a successful step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The text is complete. Without `max_tokens`, [`End::Length`] says that the prompt is evaluated.
    Complete(End),
    /// The model's output was not finite.
    NotFinite,
}

/// A reply that does not belong to the plan: the workers and the scheduler disagree, so the step counts as failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnexpectedReply {
    /// Replies arrive in the order of the plans.
    #[error("the workers replied to step {number}, but the oldest step in flight is {expected:?}")]
    Step {
        /// The step of the reply.
        number: u64,
        /// The step that should be replied to; `None` if none is in flight.
        expected: Option<u64>,
    },
    /// Each row that should choose a token must have one, unless its sequence has ended.
    #[error("the reply to step {number} has no token for slot {slot}, which runs {id}")]
    NoToken {
        /// The step.
        number: u64,
        /// The slot.
        slot: u32,
        /// The sequence.
        id: SequenceId,
    },
}

impl Scheduler {
    /// Takes the reply of the oldest step in flight: appends the tokens, releases the sequences that end, and puts full
    /// blocks into the prefix cache. Rows of sequences that were cancelled or preempted meanwhile have no outcome.
    ///
    /// # Errors
    /// The reply does not belong to the plan. Nothing has changed; the caller has to treat the step as
    /// [failed](Self::fail).
    pub fn reply(&mut self, number: u64, sampled: &[Sampled]) -> Result<Vec<Outcome>, UnexpectedReply> {
        let front = self.flights.front().filter(|flight| flight.number == number).ok_or_else(|| {
            UnexpectedReply::Step { number, expected: self.flights.front().map(|flight| flight.number) }
        })?;
        let of_row = |row: &FlightRow| {
            sampled.iter().filter(|sampled| sampled.slot == row.slot).map(|sampled| sampled.token).collect::<Vec<_>>()
        };
        let missing = |row: &&FlightRow| self.is_live(row) && row.samples && of_row(row).is_empty();
        if let Some(row) = front.rows.iter().find(missing) {
            return Err(UnexpectedReply::NoToken { number, slot: row.slot, id: row.id });
        }
        let rows = self.flights.pop_front().map(|flight| flight.rows).unwrap_or_default();
        let live: Vec<&FlightRow> = rows.iter().filter(|row| self.is_live(row)).collect();
        Ok(live.into_iter().flat_map(|row| self.follow(row, &of_row(row))).collect())
    }

    /// What a row did that chose these tokens.
    fn follow(&mut self, row: &FlightRow, chosen: &[Option<u32>]) -> Vec<Outcome> {
        let last = if row.samples { chosen.split_last() } else { None };
        let (last, right) = last.map_or((None, &[][..]), |(last, right)| (*last, right));
        let is_finite = chosen.iter().all(Option::is_some);
        let mut outcomes = Vec::with_capacity(1 + right.len());
        let mut positions = row.start..row.end;
        for token in right.iter().map_while(|token| *token) {
            let end = self.append(row.id, token);
            outcomes.push(Outcome {
                id: row.id,
                slot: row.slot,
                positions: positions.clone(),
                token: Some(token),
                end,
            });
            positions = positions.end..positions.end + 1;
            if end.is_some() {
                break;
            }
        }
        self.judge(row, right.len(), positions.end);
        if is_finite {
            // Others must not find blocks whose output is not finite.
            self.register(row, positions.end);
        }
        if outcomes.last().is_none_or(|outcome| outcome.end.is_none()) {
            let end = match last {
                _ if !is_finite => Some(Ended::NotFinite),
                Some(token) => self.append(row.id, token),
                None => self.is_evaluated(row).then_some(Ended::Complete(End::Length)),
            };
            outcomes.push(Outcome { id: row.id, slot: row.slot, positions, token: last.filter(|_| is_finite), end });
        }
        if outcomes.last().is_some_and(|outcome| outcome.end.is_some()) {
            self.cancel(row.id);
        }
        outcomes
    }

    /// Notes how many guesses of a row were right, which the workers have computed up to a position.
    fn judge(&mut self, row: &FlightRow, right: usize, end: usize) {
        let Some(sequence) = self.sequences.get_mut(&row.id).filter(|_| row.drafted > 0) else { return };
        sequence.drafts.judge(row.drafted, right);
        self.counters.drafted += row.drafted as u64;
        self.counters.accepted += right as u64;
        if let Some(resident) = &mut sequence.resident {
            (resident.planned, resident.is_drafted) = (end, false);
        }
    }

    /// Whether a row's sequence still has the blocks that the row was planned with.
    fn is_live(&self, row: &FlightRow) -> bool {
        self.sequences.get(&row.id).is_some_and(|sequence| sequence.incarnation == row.incarnation)
    }

    /// Whether a row was the last one of a sequence that generates nothing.
    fn is_evaluated(&self, row: &FlightRow) -> bool {
        let sequence = self.sequences.get(&row.id);
        sequence.is_some_and(|sequence| sequence.work.max_tokens == 0 && row.end == sequence.tokens.len())
    }

    /// Notes that a row has succeeded up to a position.
    fn register(&mut self, row: &FlightRow, end: usize) {
        let Some(sequence) = self.sequences.get_mut(&row.id) else { return };
        if end >= sequence.outside.1 {
            sequence.outside = (0, 0);
        }
        if sequence.failed_at.is_some_and(|position| end >= position) {
            sequence.failed_at = None;
            sequence.is_suspect = false;
        }
        let Some(resident) = &mut sequence.resident else { return };
        sequence.chain.extend(&sequence.tokens);
        // If the workers lose the hidden state of the last token, it is computed again, so no other sequence gets its block yet.
        resident.computed = end - usize::from(row.holds);
        sequence.reached = sequence.reached.max(resident.computed);
        let full = resident.computed / BLOCK_TOKENS;
        let filled = resident.table.iter().zip(sequence.chain.digests()).take(full).skip(resident.registered);
        for (&block, &digest) in filled {
            self.blocks.register(block, digest);
        }
        resident.registered = full;
        let Some(states) = &mut self.states else { return };
        let is_text = row.start >= sequence.work.prompt.len();
        for (position, state) in resident.keeping.extract_if(.., |(position, _)| *position <= end) {
            let Some(digest) = sequence.chain.digests().get(position / BLOCK_TOKENS - 1) else { continue };
            states.register(state, *digest);
            states.release(&[state]);
            if is_text && let Some(older) = resident.kept.replace(*digest) {
                states.discard(&older);
            }
        }
    }

    /// Appends a token to a text. Returns whether it is the last one.
    fn append(&mut self, id: SequenceId, token: u32) -> Option<Ended> {
        let sequence = self.sequences.get_mut(&id)?;
        // A mask has no end that comes too early.
        let may_end = sequence.generated() >= sequence.work.min_tokens || sequence.work.is_masked;
        sequence.tokens.push(token);
        // A look through the whole text.
        if self.limits.drafts > 0 && !sequence.work.is_masked {
            sequence.drafts.follow(&sequence.tokens);
        }
        if let Some(resident) = &mut sequence.resident {
            resident.pending = resident.pending.saturating_sub(1);
        }
        if may_end && sequence.work.ends.contains(&token) {
            return Some(Ended::Complete(End::Token));
        }
        (sequence.generated() >= sequence.work.max_tokens).then_some(Ended::Complete(End::Length))
    }
}
