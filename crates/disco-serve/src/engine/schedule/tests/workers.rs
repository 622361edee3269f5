//! Workers whose model is a hash of the whole context: a wrong context gives a wrong text.

use std::collections::{BTreeMap, HashMap};

use super::super::reply::Sampled;
use super::super::sequence::Work;
use super::super::step::SequenceId;
use super::super::step::{Row, Step, Tokens};
use crate::engine::blocks::BLOCK_TOKENS;

const VOCABULARY: u64 = 23;

/// The workers' memory, and what the engine told them.
#[derive(Default)]
pub(super) struct Workers {
    /// Token and position by block and offset.
    memory: HashMap<(u32, usize), (u32, usize)>,
    slots: HashMap<u32, Slot>,
    pub(super) works: BTreeMap<SequenceId, Work>,
    /// Positions at which a sequence makes its step fail.
    pub(super) killers: BTreeMap<SequenceId, usize>,
}

struct Slot {
    id: SequenceId,
    table: Vec<u32>,
    count: usize,
    last: Option<u32>,
    has_ended: bool,
}

/// The token that follows a context.
pub(super) fn next_token(context: &[u32]) -> u32 {
    let hash = context.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &token| {
        (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
    });
    ((hash >> 7) % VOCABULARY) as u32
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
    /// Executes a step; `None` if a killer's row made it fail.
    pub(super) fn execute(&mut self, step: &Step) -> Option<Vec<Sampled>> {
        let kills = |row: &Row| self.killers.get(&row.id).is_some_and(|at| (row.start..row.end()).contains(at));
        if step.rows.iter().any(kills) {
            return None;
        }
        Some(step.rows.iter().filter_map(|row| self.row(row)).collect())
    }

    /// Memory and slots hold nothing that can be used.
    pub(super) fn void(&mut self) {
        self.memory.values_mut().for_each(|cell| *cell = (u32::MAX, usize::MAX));
        self.slots.clear();
    }

    fn row(&mut self, row: &Row) -> Option<Sampled> {
        if row.is_first {
            let slot = Slot { id: row.id, table: Vec::new(), count: row.start, last: None, has_ended: false };
            self.slots.insert(row.slot, slot);
        }
        let slot = self.slots.get_mut(&row.slot).expect("the first row of a slot is marked");
        assert_eq!(slot.id, row.id, "the slot was given away without a first row");
        assert_eq!(slot.count, row.start, "rows leave no gap");
        slot.table.extend(&row.blocks);
        slot.count = row.end();
        if slot.has_ended {
            return None;
        }
        let tokens = match &row.tokens {
            Tokens::Given(tokens) => tokens.clone(),
            Tokens::Continue => vec![slot.last.expect("the last row has chosen a token")],
        };
        for (position, token) in (row.start..).zip(tokens) {
            self.memory.insert((slot.table[position / BLOCK_TOKENS], position % BLOCK_TOKENS), (token, position));
        }
        assert!(slot.table.len() <= slot.count.div_ceil(BLOCK_TOKENS), "a block was given too early");
        if !row.samples {
            return None;
        }
        let context = (0..slot.count).map(|position| {
            let cell = self.memory[&(slot.table[position / BLOCK_TOKENS], position % BLOCK_TOKENS)];
            assert_eq!(cell.1, position, "{} reads a block of another sequence", row.id);
            cell.0
        });
        let context: Vec<u32> = context.collect();
        let work = &self.works[&row.id];
        assert!(context.starts_with(&work.prompt), "{} has lost its prompt", row.id);
        let token = next_token(&context);
        slot.last = Some(token);
        slot.has_ended = work.ends.contains(&token) && context.len() - work.prompt.len() >= work.min_tokens;
        Some(Sampled { slot: row.slot, token: Some(token) })
    }
}
