//! Workers whose model is a hash of the whole context: a wrong context gives a wrong text.

use std::collections::{BTreeMap, HashMap};

use super::super::reply::Sampled;
use super::super::scheduler::Limits;
use super::super::sequence::{FirstContext, Work};
use super::super::step::SequenceId;
use super::super::step::{Row, Step, Tokens};
use crate::engine::blocks::BLOCK_TOKENS;

const VOCABULARY: u64 = 23;

/// The workers' memory, and what the engine told them.
#[derive(Default)]
pub(super) struct Workers {
    /// Whether the model needs the states of sequences.
    has_states: bool,
    first: Option<FirstContext>,
    /// Token, position and rotation by block and offset.
    memory: HashMap<(u32, usize), (u32, usize, usize)>,
    slots: HashMap<u32, Slot>,
    /// The cells that the last step has written.
    pub(super) written: Vec<(u32, usize)>,
    /// The kept states, each of which is all tokens before it.
    kept: HashMap<u32, Vec<u32>>,
    pub(super) works: BTreeMap<SequenceId, Work>,
    /// Positions at which a sequence makes its step fail.
    pub(super) killers: BTreeMap<SequenceId, usize>,
}

struct Slot {
    id: SequenceId,
    table: Vec<u32>,
    count: usize,
    known: usize,
    state: Vec<u32>,
    last: Option<u32>,
    /// Whether the last row has kept its hidden state.
    holds: bool,
    has_ended: bool,
}

/// The token that follows a context. Nearly all texts of every other prompt repeat what followed their last two tokens before.
pub(super) fn next_token(context: &[u32]) -> u32 {
    let hash = context.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &token| {
        (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
    });
    let repeats = context[0].is_multiple_of(2) && !(hash >> 20).is_multiple_of(16);
    let repeated = || {
        let (place, _) = context.windows(3).enumerate().rfind(|(_, three)| context.ends_with(&three[..2]))?;
        Some(context[place + 2])
    };
    let repeated = if repeats { repeated() } else { None };
    repeated.unwrap_or(((hash >> 7) % VOCABULARY) as u32)
}

/// The text of a request that nothing disturbs.
pub(super) fn undisturbed(work: &Work) -> Vec<u32> {
    let mut tokens = work.prompt.to_vec();
    for generated in 0..work.max_tokens {
        let token = next_token(&tokens);
        tokens.push(token);
        if generated >= work.min_tokens && work.ends.contains(&token) {
            break;
        }
    }
    tokens.split_off(work.prompt.len())
}

impl Workers {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { has_states: limits.kept_states.is_some(), first: limits.first_context, ..Self::default() }
    }

    /// How the token at a position is rotated in a text of which `known` tokens were known when it began.
    fn rotation(&self, position: usize, known: usize) -> usize {
        let Some(FirstContext { tokens, restarts }) = self.first else { return 0 };
        match known.max(position + 1) {
            length if length <= tokens => 0,
            _ if restarts => 1,
            length => length,
        }
    }

    /// Executes a step; `None` if a killer's row made it fail.
    pub(super) fn execute(&mut self, step: &Step) -> Option<Vec<Sampled>> {
        let kills = |row: &Row| self.killers.get(&row.id).is_some_and(|at| (row.start..row.end()).contains(at));
        self.written.clear();
        if step.rows.iter().any(kills) {
            return None;
        }
        Some(step.rows.iter().flat_map(|row| self.row(row)).collect())
    }

    /// Memory and slots hold nothing that can be used.
    pub(super) fn forget(&mut self) {
        self.memory.values_mut().for_each(|cell| *cell = (u32::MAX, usize::MAX, 0));
        self.slots.clear();
        self.kept.clear();
    }

    /// Some cells and kept states hold nothing that can be used, and slots neither.
    pub(super) fn damage(&mut self, cells: impl Iterator<Item = (u32, usize)>, states: impl Iterator<Item = u32>) {
        self.memory.extend(cells.map(|cell| (cell, (u32::MAX, usize::MAX, 0))));
        self.slots.clear();
        states.for_each(|state| _ = self.kept.remove(&state));
    }

    fn row(&mut self, row: &Row) -> Vec<Sampled> {
        if row.is_first {
            let state = row.resumes.map(|state| self.kept[&state].clone()).unwrap_or_default();
            let slot = Slot {
                id: row.id,
                table: Vec::new(),
                count: row.start,
                known: row.known,
                state,
                last: None,
                holds: false,
                has_ended: false,
            };
            self.slots.insert(row.slot, slot);
        }
        let mut slot = self.slots.remove(&row.slot).expect("the first row of a slot is marked");
        let sampled = self.compute(row, &mut slot);
        self.slots.insert(row.slot, slot);
        sampled
    }

    fn compute(&mut self, row: &Row, slot: &mut Slot) -> Vec<Sampled> {
        assert_eq!(slot.id, row.id, "the slot was given away without a first row");
        assert_eq!(slot.count, row.start, "rows leave no gap");
        slot.table.extend(&row.blocks);
        slot.count = row.end() - row.drafted;
        if slot.has_ended {
            return Vec::new();
        }
        let tokens = match &row.tokens {
            Tokens::Given(tokens) => tokens.clone(),
            Tokens::Continue => vec![slot.last.take().expect("the last row has chosen a token")],
            Tokens::Held => {
                assert!(std::mem::take(&mut slot.holds), "the last row has kept nothing");
                Vec::new()
            }
        };
        assert!(!slot.holds, "a hidden state is lost");
        assert!(!row.holds || !row.samples);
        slot.holds = row.holds;
        assert!(!row.samples || self.works[&row.id].is_masked == (row.tokens == Tokens::Held));
        slot.state.extend(&tokens);
        if let Some((count, state)) = row.keeps {
            self.kept.insert(state, slot.state[..slot.state.len() - tokens.len() + count].to_vec());
        }
        let guesses = tokens[tokens.len() - row.drafted..].to_vec();
        assert!(guesses.is_empty() || row.samples && tokens.len() > row.drafted && !self.has_states);
        for (position, token) in (row.start..).zip(tokens) {
            let cell = (token, position, self.rotation(position, slot.known));
            let place = (slot.table[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
            self.written.push(place);
            self.memory.insert(place, cell);
        }
        let had = (slot.table.len() - row.blocks.len()) * BLOCK_TOKENS;
        assert!(row.blocks.is_empty() || had + row.blocks.len() * BLOCK_TOKENS < row.end() + BLOCK_TOKENS, "too early");
        if !row.samples {
            return Vec::new();
        }
        let mut sampled = Vec::new();
        for guess in guesses.into_iter().map(Some).chain([None]) {
            let token = self.choose(slot);
            slot.last = Some(token);
            sampled.push(Sampled { slot: row.slot, token: Some(token) });
            if guess != Some(token) || slot.has_ended {
                break;
            }
            slot.count += 1;
        }
        sampled
    }

    /// The token behind those of a slot.
    fn choose(&self, slot: &mut Slot) -> u32 {
        let work = &self.works[&slot.id];
        // Of a text that nothing disturbs: a long one that restarts knows all of its tokens.
        let restarts = self.first.is_some_and(|first| first.restarts);
        let known = if restarts { slot.count } else { work.prompt.len() };
        let context = (0..slot.count).map(|position| {
            let cell = self.memory[&(slot.table[position / BLOCK_TOKENS], position % BLOCK_TOKENS)];
            assert_eq!(cell.1, position, "{} reads a block of another sequence", slot.id);
            assert_eq!(cell.2, self.rotation(position, known), "{}: the rotation of token {position}", slot.id);
            cell.0
        });
        let context: Vec<u32> = context.collect();
        if self.has_states {
            assert_eq!(slot.state, context, "{} goes on with the state of another text", slot.id);
        }
        assert!(context.starts_with(&work.prompt), "{} has lost its prompt", slot.id);
        let token = next_token(&context);
        slot.has_ended = work.ends.contains(&token) && context.len() - work.prompt.len() >= work.min_tokens;
        token
    }
}
