//! Planning a step.

use super::super::blocks::BLOCK_TOKENS;
use super::scheduler::{STEPS_AHEAD, Scheduler};
use super::sequence::Resident;
use super::step::{Flight, Row, SequenceId, Step, Tokens};

/// A step that is being planned.
struct Draft {
    rows: Vec<Row>,
    /// Tokens that it has room for.
    budget: usize,
}

impl Scheduler {
    /// Plans the next step, which is then in flight. The workers must get steps in the order of their plans.
    ///
    /// `None` means that [`STEPS_AHEAD`] steps that compute tokens are in flight, or that all that can be done waits for a reply,
    /// or that all sequences are paused.
    pub fn plan(&mut self) -> Option<Step> {
        // The reply of a choice is near, and its tokens can take part then.
        let is_choice = |flight: &Flight| flight.is_choice;
        let ahead = self.flights.iter().filter(|flight| !is_choice(flight)).count();
        if ahead >= STEPS_AHEAD || (ahead > 0 && self.flights.front().is_some_and(is_choice)) {
            return None;
        }
        if !self.flights.is_empty() && self.drafts() {
            return None;
        }
        let mut draft = Draft { rows: Vec::new(), budget: self.step_tokens };
        match self.first_suspect() {
            Some(suspect) => self.plan_alone(suspect, &mut draft),
            None => self.plan_all(&mut draft),
        }
        if draft.rows.is_empty() {
            return None;
        }
        Some(self.launch(draft.rows))
    }

    fn launch(&mut self, rows: Vec<Row>) -> Step {
        let step = Step { number: self.next_step, rows };
        self.next_step += 1;
        self.flights.push_back(Flight::of(&step));
        step
    }

    /// The masked sequences of which a token can be chosen now: all of their text is known.
    pub fn holding(&self) -> Vec<SequenceId> {
        let suspect = self.first_suspect();
        let holding = self.residents().filter(|(id, sequence)| {
            let is_ready = sequence.resident.as_ref().is_some_and(|it| it.holds && it.pending == 0);
            is_ready && !sequence.is_paused && suspect.is_none_or(|suspect| suspect == *id)
        });
        holding.map(|(id, _)| id).collect()
    }

    /// Plans a step that chooses tokens of some sequences that are [holding](Self::holding). The steps behind it go on with them.
    pub fn plan_choice(&mut self, ids: &[SequenceId]) -> Option<Step> {
        let mut rows = Vec::with_capacity(ids.len());
        for &id in ids {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            let (incarnation, known) = (sequence.incarnation, sequence.known);
            let Some(resident) = &mut sequence.resident else { continue };
            resident.holds = false;
            resident.pending += 1;
            rows.push(Row {
                id,
                incarnation,
                slot: resident.slot,
                start: resident.planned,
                tokens: Tokens::Held,
                blocks: Vec::new(),
                is_first: false,
                known,
                samples: true,
                holds: false,
                resumes: None,
                keeps: None,
                drafted: 0,
            });
        }
        (!rows.is_empty()).then(|| self.launch(rows))
    }

    fn first_suspect(&self) -> Option<SequenceId> {
        let mut suspects = self.sequences.iter().filter(|(_, sequence)| sequence.is_suspect && !sequence.is_paused);
        suspects.next().map(|(&id, _)| id)
    }

    /// Plans a row of a sequence that may make steps fail, once nothing else is in flight.
    fn plan_alone(&mut self, suspect: SequenceId, draft: &mut Draft) {
        if self.flights.iter().flat_map(|flight| &flight.rows).any(|row| row.id != suspect) {
            return;
        }
        let others: Vec<SequenceId> = self.residents().map(|(id, _)| id).filter(|&id| id != suspect).collect();
        for other in others {
            self.preempt(other, draft);
        }
        if !self.admit(suspect, draft) {
            self.extend(suspect, draft);
            // If it restarts.
            self.admit(suspect, draft);
        }
    }

    fn plan_all(&mut self, draft: &mut Draft) {
        let preemptions = self.counters.preemptions;
        for id in self.ready(|left| left == 1) {
            self.extend(id, draft);
        }
        for id in self.ready(|left| left > 1) {
            self.extend(id, draft);
        }
        // A sequence that was preempted just now is not admitted with the blocks that it gave back.
        if self.counters.preemptions > preemptions {
            return;
        }
        let waiting = self.sequences.iter().filter(|(_, sequence)| sequence.resident.is_none() && !sequence.is_paused);
        let waiting: Vec<SequenceId> = waiting.map(|(&id, _)| id).collect();
        for id in waiting {
            // No sequence is admitted before an older one.
            if draft.budget == 0 || !self.admit(id, draft) {
                break;
            }
        }
    }

    /// The running sequences whose number of positions left satisfies a condition, oldest first.
    fn ready(&self, condition: impl Fn(usize) -> bool) -> Vec<SequenceId> {
        let ready = self.residents().filter(|(_, sequence)| !sequence.is_paused && condition(sequence.left()));
        ready.map(|(id, _)| id).collect()
    }

    /// Plans the next tokens of a running sequence: as many as budget and blocks allow, and at least one if the budget is
    /// not used up. Preempts others only for the first one.
    fn extend(&mut self, id: SequenceId, draft: &mut Draft) {
        let Some(sequence) = self.sequences.get(&id) else { return };
        // An older sequence may have preempted it.
        let Some(resident) = &sequence.resident else { return };
        if sequence.left() == 0 || draft.budget == 0 {
            return;
        }
        let first = self.limits.first_context;
        if sequence.will_restart(first) {
            if sequence.restarts(first) {
                // It waits, and begins anew.
                self.release(id);
            }
            return;
        }
        if resident.planned == resident.table.len() * BLOCK_TOKENS && !self.make_room(id, draft) {
            return;
        }
        self.add_row(id, None, draft);
    }

    /// Makes a block available by preempting sequences. Returns `false` if `id` itself was preempted.
    fn make_room(&mut self, id: SequenceId, draft: &mut Draft) -> bool {
        while self.blocks.available() == 0 {
            let newest = self.residents().next_back().map(|(id, _)| id);
            let Some(victim) = self.newest_paused().or(newest) else { return false };
            self.preempt(victim, draft);
            if victim == id {
                return false;
            }
        }
        true
    }

    fn newest_paused(&self) -> Option<SequenceId> {
        self.residents().rfind(|(_, sequence)| sequence.is_paused).map(|(id, _)| id)
    }

    fn preempt(&mut self, id: SequenceId, draft: &mut Draft) {
        self.release(id);
        self.counters.preemptions += 1;
        draft.rows.retain(|row| {
            let is_other = row.id != id;
            if !is_other {
                draft.budget += row.count();
            }
            is_other
        });
    }

    /// Gives a waiting sequence a slot and blocks for its next tokens, if there are enough. Blocks of the prefix cache are
    /// used as they are. Returns whether the sequence was waiting and runs now.
    fn admit(&mut self, id: SequenceId, draft: &mut Draft) -> bool {
        let first = self.limits.first_context;
        let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| sequence.resident.is_none()) else {
            return false;
        };
        if sequence.restarts(first) {
            sequence.restart(first);
        }
        let reads_cache = sequence.work.reads_cache;
        let tokens = sequence.tokens.len();
        let mut shareable = sequence.shareable();
        let mut resumes = None;
        if let Some(states) = &mut self.states {
            let kept = states.last(&shareable[..self.blocks.find(shareable)]);
            shareable = &shareable[..kept.map_or(0, |(place, _)| place + 1)];
            resumes = kept.map(|(_, state)| state);
        }
        let table = self.blocks.share(shareable);
        let planned = table.len() * BLOCK_TOKENS;
        let wanted = (tokens - planned).min(draft.budget);
        let blocks = (planned + wanted).div_ceil(BLOCK_TOKENS) - table.len();
        let Some(slot) = self.take_slot(blocks, draft) else {
            self.blocks.release(&table);
            return false;
        };
        if reads_cache {
            self.counters.prefix_queries += tokens as u64;
            self.counters.prefix_hits += planned as u64;
        }
        if let Some(sequence) = self.sequences.get_mut(&id) {
            let registered = table.len();
            sequence.resident = Some(Resident {
                slot,
                table,
                registered,
                planned,
                computed: planned,
                is_told: false,
                pending: 0,
                holds: false,
                is_drafted: false,
                keeping: Vec::new(),
                kept: None,
            });
        }
        self.add_row(id, resumes, draft);
        true
    }

    /// Takes a slot, if so many blocks are available, too, and one more for each sequence that runs: without those, the next
    /// steps would preempt the sequence that gets the slot. Preempts paused sequences.
    fn take_slot(&mut self, blocks: usize, draft: &mut Draft) -> Option<u32> {
        let reserve = self.residents().filter(|(_, sequence)| !sequence.is_paused).count();
        while self.free_slots.is_empty() || self.blocks.available() < blocks + reserve {
            let paused = self.newest_paused()?;
            self.preempt(paused, draft);
        }
        self.free_slots.pop()
    }

    /// Plans the next tokens of a sequence that has a slot: as many as the budget, its table and the available blocks have
    /// room for. `resumes`: the kept state that a first row begins with.
    fn add_row(&mut self, id: SequenceId, resumes: Option<u32>, draft: &mut Draft) {
        let drafts = self.drafts();
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(Resident { table, planned, is_told, .. }) = &sequence.resident else { return };
        let (start, is_first) = (*planned, !is_told);
        let room = (table.len() + self.blocks.available()) * BLOCK_TOKENS - start;
        let count = sequence.left().min(draft.budget).min(room);
        let end = start + count;
        let guesses = if drafts && !is_first && sequence.wants_draft() && count == 1 && end == sequence.tokens.len() {
            let most = sequence.most_guesses(self.limits.first_context).min(self.limits.drafts);
            sequence.drafts.draft(&sequence.tokens, most.min(draft.budget - count).min(room - count))
        } else {
            Vec::new()
        };
        let drafted = guesses.len();
        let blocks = (end + drafted).div_ceil(BLOCK_TOKENS).saturating_sub(table.len());
        let Some(new) = self.blocks.take(blocks) else { return };
        let mut tokens = sequence.next(count);
        if let Tokens::Given(tokens) = &mut tokens {
            tokens.extend(guesses);
        }
        let chooses = sequence.work.max_tokens > 0 && count == sequence.left();
        let (samples, holds) = (chooses && !sequence.work.is_masked, chooses && sequence.work.is_masked);

        let full = end / BLOCK_TOKENS * BLOCK_TOKENS;
        let state = self.states.as_mut().filter(|_| full > start).and_then(|states| states.take(1)?.pop());

        let (incarnation, known) = (sequence.incarnation, sequence.known);
        let Some(resident) = &mut sequence.resident else { return };
        resident.table.extend(&new);
        (resident.planned, resident.is_told) = (end, true);
        self.counters.recomputed += end.min(sequence.reached).saturating_sub(start) as u64;
        resident.pending += usize::from(samples);
        resident.holds = holds;
        resident.is_drafted = drafted > 0;
        resident.keeping.extend(state.map(|state| (full, state)));
        // Sequences that run have the states with the numbers of their slots.
        let number = |state| self.limits.max_sequences + state;
        let keeps = state.map(|state| (full - start, number(state)));
        let resumes = resumes.map(number);
        let blocks = if is_first { resident.table.clone() } else { new };
        let slot = resident.slot;
        draft.budget -= count + drafted;
        let row = Row {
            id,
            incarnation,
            slot,
            start,
            tokens,
            blocks,
            is_first,
            known,
            samples,
            holds,
            resumes,
            keeps,
            drafted,
        };
        draft.rows.push(row);
    }
}
