//! Tokens of sequences that join and leave a batch.

use candle_core::Tensor;
use disco_candle::paged::prepare;
pub use disco_candle::paged::{BLOCK, Run};

use crate::blocks::Places;
pub use crate::states::RunState;
use crate::states::Span;
use crate::{ModelError, Pool, Transformer};

/// Tokens of several sequences that are processed together.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Ragged {
    /// The tokens of all runs, one after the other.
    pub tokens: Vec<u32>,
    /// The sequences.
    pub runs: Vec<Run>,
    /// The tokens whose hidden states are wanted, by their places in `tokens`.
    pub wanted: Vec<u32>,
    /// For each run, the number of tokens that its sequence was known to get when the sequence's first token was computed; if
    /// there is none, the number of its tokens behind the run. Positions beyond the [first context](crate::Config::first_context)
    /// depend on it.
    pub lengths: Vec<usize>,
    /// The states of the runs, if the model is [recurrent](crate::Config::is_recurrent).
    pub states: Vec<RunState>,
}

impl Ragged {
    /// Adds the tokens of a sequence from position `first` on. Returns the place of the last one.
    pub fn push(&mut self, tokens: &[u32], first: usize, table: Vec<u32>) -> u32 {
        self.tokens.extend_from_slice(tokens);
        self.runs.push(Run::new(first, tokens.len(), table));
        (self.tokens.len() as u32).saturating_sub(1)
    }

    /// # Errors
    /// There is no token, a token is none of the vocabulary, or a run has no room in its table, or blocks that are not there.
    fn check(&self, blocks: usize, vocabulary: usize) -> Result<(), String> {
        let count: usize = self.runs.iter().map(|run| run.count).sum();
        if count != self.tokens.len() || count == 0 {
            return Err(format!("a batch has {} tokens and runs of {count}", self.tokens.len()));
        }
        for Run { first, count, table, .. } in &self.runs {
            if *count == 0 || first + count > table.len() * BLOCK {
                return Err(format!("{count} tokens from {first} on in {} blocks", table.len()));
            }
            if let Some(block) = table.iter().find(|block| **block as usize >= blocks) {
                return Err(format!("block {block} of {blocks}"));
            }
        }
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(format!("token {token} of {vocabulary}"));
        }
        match self.wanted.iter().find(|place| **place as usize >= self.tokens.len()) {
            Some(place) => Err(format!("the hidden state of token {place} of {}", self.tokens.len())),
            None => Ok(()),
        }
    }
}

impl Transformer {
    /// Memory for `blocks` blocks of 16 tokens, which is the same number on all ranks.
    ///
    /// # Errors
    /// The device has too little memory; the kernels of a CUDA device can't be compiled.
    pub fn pool(&self, blocks: usize) -> Result<Pool, ModelError> {
        prepare(self.device())?;
        Ok(Pool::new(blocks, self.memories(), self.start_states(), (self.dtype(), self.device()))?)
    }

    /// As [`pool`](Self::pool), in memory that outlives the worker, on the host, with so many kept states from a number on. `keep` gets the
    /// name of the memory, the type and the number of elements.
    pub(crate) fn kept_pool(
        &self,
        blocks: usize,
        kept_states: (u32, usize),
        keep: impl FnMut(&str, disco_core::DType, usize) -> disco_core::Result<disco_core::Tensor>,
    ) -> Result<Pool, ModelError> {
        Ok(Pool::kept(blocks, self.memories(), self.start_states(), self.dtype(), kept_states, keep)?)
    }

    /// Processes the next tokens of several sequences, whose earlier ones the pool has. Returns the hidden states that are
    /// wanted, `[wanted, dim]`. All ranks call it with equal arguments.
    ///
    /// # Errors
    /// A sequence is too long, or its blocks are not those of the pool; a collective fails.
    pub fn batch(&self, pool: &mut Pool, batch: &Ragged) -> Result<Tensor, ModelError> {
        batch.check(pool.blocks(), self.config().vocabulary).map_err(ModelError::Call)?;
        let longest = batch.runs.iter().map(|run| run.first + run.count).max().unwrap_or(0);
        self.check_room(longest)?;
        let places = Places::new(&batch.runs, self.heads(), None, self.device())?;
        let tokens = Tensor::new(&batch.tokens[..], self.device())?;
        if self.config().is_recurrent() && batch.states.len() != batch.runs.len() {
            let why = format!("a batch has {} runs and the states of {}", batch.runs.len(), batch.states.len());
            return Err(ModelError::Call(why));
        }
        let states = batch.states.iter().copied().chain(std::iter::repeat(RunState::default()));
        let mut spans = Vec::with_capacity(batch.runs.len());
        for ((number, run), state) in batch.runs.iter().enumerate().zip(states) {
            let end = run.first + run.count;
            let length = batch.lengths.get(number).copied().filter(|_| self.config().first_context().is_some());
            let known = length.unwrap_or(end).clamp(run.first, end);
            if known > run.first {
                spans.push(Span { first: run.first, count: known - run.first, length: length.unwrap_or(end), state });
            }
            // Each of these was the last token when it was computed first.
            spans.extend((known..end).map(|at| Span { first: at, count: 1, length: at + 1, state }));
        }
        let x = self.pass(pool, &tokens, &places, &spans)?;
        self.last_norm(&x.index_select(&Tensor::new(&batch.wanted[..], self.device())?, 0)?)
    }
}
