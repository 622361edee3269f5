//! The sequences and what they hold.

use std::collections::{BTreeMap, VecDeque};

use super::super::blocks::{BLOCK_TOKENS, Blocks};
use super::sequence::{FirstContext, Sequence, Work};
use super::step::{Flight, SequenceId};

/// Number of steps that may be in flight.
pub const STEPS_AHEAD: usize = 2;

/// With more sequences, none gets a draft.
const DRAFTED_SEQUENCES: usize = 3;

/// What a step and the workers' memory have room for.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Blocks of [`BLOCK_TOKENS`] tokens.
    pub blocks: u32,
    /// Slots of the workers: sequences that run at the same time, at least one.
    pub max_sequences: u32,
    /// Tokens of a step, at least one.
    pub max_batched_tokens: usize,
    /// Tokens of a prompt and its text.
    pub context: usize,
    /// States of linear attention that the workers keep beside those of sequences that run: a prefix is found where one is
    /// kept. `None`: the model has no such states, and a prefix needs its blocks only.
    pub kept_states: Option<u32>,
    /// The first context, if longer texts are rotated in another way.
    pub first_context: Option<FirstContext>,
    /// The most guesses of a row; 0 guesses none. Models with kept states can't have any.
    pub drafts: usize,
}

/// Why a sequence can never run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It has no prompt.
    #[error("the prompt has no tokens; it must have at least one")]
    EmptyPrompt,
    /// It is longer than the model's context.
    #[error(
        "the prompt has {prompt} tokens and max_tokens is {max_tokens}; together they exceed the context of {context}"
    )]
    Context {
        /// Tokens of the prompt.
        prompt: usize,
        /// The most tokens to generate.
        max_tokens: usize,
        /// The most tokens of both.
        context: usize,
    },
    /// It is larger than the key-value cache.
    #[error(
        "the prompt has {prompt} tokens and max_tokens is {max_tokens}; together they need {needed} cache blocks of \
         {BLOCK_TOKENS} tokens, and the server has {total}"
    )]
    Cache {
        /// Tokens of the prompt.
        prompt: usize,
        /// The most tokens to generate.
        max_tokens: usize,
        /// Blocks that it may need.
        needed: usize,
        /// All blocks.
        total: usize,
    },
}

/// Plans steps, and follows their replies.
#[derive(Debug)]
pub struct Scheduler {
    pub(super) limits: Limits,
    /// Oldest first.
    pub(super) sequences: BTreeMap<SequenceId, Sequence>,
    pub(super) blocks: Blocks,
    /// The kept states, by the digests of the prefixes that they are behind.
    pub(super) states: Option<Blocks>,
    pub(super) free_slots: Vec<u32>,
    /// Oldest first.
    pub(super) flights: VecDeque<Flight>,
    pub(super) next_step: u64,
    /// The most tokens of the next step.
    pub(super) step_tokens: usize,
    pub(super) counters: Counters,
    next_id: u64,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sequences that lost their blocks for want of memory.
    pub preemptions: u64,
    /// Tokens that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens of those that were found.
    pub prefix_hits: u64,
    /// Tokens that were guessed.
    pub drafted: u64,
    /// Tokens of those that were right.
    pub accepted: u64,
    /// Tokens that were computed again, because their keys and values were given away or lost.
    pub recomputed: u64,
}

/// What there is to do, and what is in use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Sequences that have a slot, paused ones included.
    pub running: usize,
    /// Sequences that have none.
    pub waiting: usize,
    /// Blocks that sequences use.
    pub blocks_used: usize,
    /// All blocks.
    pub blocks: usize,
    /// Steps in flight.
    pub flights: usize,
}

impl Scheduler {
    /// A scheduler without sequences.
    pub fn new(limits: Limits) -> Self {
        let limits = Limits {
            max_sequences: limits.max_sequences.max(1),
            max_batched_tokens: limits.max_batched_tokens.max(1),
            drafts: if limits.kept_states.is_some() { 0 } else { limits.drafts },
            ..limits
        };
        Self {
            sequences: BTreeMap::new(),
            blocks: Blocks::new(limits.blocks),
            states: limits.kept_states.map(Blocks::new),
            free_slots: (0..limits.max_sequences).rev().collect(),
            flights: VecDeque::new(),
            next_step: 0,
            step_tokens: limits.max_batched_tokens,
            counters: Counters::default(),
            next_id: 0,
            limits,
        }
    }

    /// Adds a sequence, which waits until a plan has room for it.
    ///
    /// # Errors
    /// The sequence would not fit even if it were the only one.
    pub fn submit(&mut self, work: Work) -> Result<SequenceId, Unfit> {
        let (prompt, max_tokens) = (work.prompt.len(), work.max_tokens);
        if prompt == 0 {
            return Err(Unfit::EmptyPrompt);
        }
        let all = prompt.saturating_add(max_tokens);
        if all > self.limits.context {
            return Err(Unfit::Context { prompt, max_tokens, context: self.limits.context });
        }
        let (needed, total) = (all.div_ceil(BLOCK_TOKENS), self.blocks.count());
        if needed > total {
            return Err(Unfit::Cache { prompt, max_tokens, needed, total });
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, Sequence::new(work, self.limits.first_context));
        Ok(id)
    }

    /// Ends a sequence. Its blocks and its slot can be used by the next plan; replies to its rows in flight are ignored.
    /// Returns whether the sequence had not ended.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        self.release(id);
        self.sequences.remove(&id).is_some()
    }

    /// Leaves a sequence out of later plans, until [`resume`](Self::resume). It keeps its blocks as long as nobody else
    /// needs them. Rows in flight are not affected, so up to [`STEPS_AHEAD`] more tokens can arrive.
    pub fn pause(&mut self, id: SequenceId) {
        self.set_paused(id, true);
    }

    /// Ends a pause.
    pub fn resume(&mut self, id: SequenceId) {
        self.set_paused(id, false);
    }

    /// Limits the tokens of later steps, within `max_batched_tokens` and at least to one.
    pub fn limit_steps(&mut self, tokens: usize) {
        self.step_tokens = tokens.clamp(1, self.limits.max_batched_tokens);
    }

    /// What there is to do.
    pub fn load(&self) -> Load {
        let running = self.residents().count();
        Load {
            running,
            waiting: self.sequences.len() - running,
            blocks_used: self.blocks.count() - self.blocks.available(),
            blocks: self.blocks.count(),
            flights: self.flights.len(),
        }
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether a sequence gets a draft in the next step. In steps of many sequences, guesses would cost more than they save.
    pub(super) fn drafts(&self) -> bool {
        self.limits.drafts > 0
            && self.residents().filter(|(_, sequence)| !sequence.is_paused).count() <= DRAFTED_SEQUENCES
            && self.residents().any(|(_, sequence)| sequence.wants_draft())
    }

    fn set_paused(&mut self, id: SequenceId, is_paused: bool) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.is_paused = is_paused;
        }
    }

    /// The sequences that have a slot, oldest first.
    pub(super) fn residents(&self) -> impl DoubleEndedIterator<Item = (SequenceId, &Sequence)> {
        self.sequences.iter().filter(|(_, sequence)| sequence.resident.is_some()).map(|(&id, sequence)| (id, sequence))
    }

    /// Takes slot and blocks from a sequence, if it has them: all that a sequence holds returns here.
    pub(super) fn release(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(resident) = sequence.resident.take() else { return };
        sequence.incarnation += 1;
        self.blocks.release(&resident.table);
        if let Some(states) = &mut self.states {
            resident.keeping.iter().for_each(|(_, state)| states.release(&[*state]));
        }
        self.free_slots.push(resident.slot);
    }
}
