//! Keys and values in blocks, for sequences that join and leave a batch.

use crate::attention::{Memory, View};
use crate::heads::Heads;
use crate::{ModelError, Transformer};
use candle_core::{Device, Result, Tensor};

pub use disco_candle::paged::{BLOCK, Run};
use disco_candle::paged::{Plan, Scope, attention, prepare};

/// Keys and values of the kv heads of one rank, in blocks of 16 tokens. A sequence has a table of its blocks, in the order of its
/// tokens; who makes the tables is the program's part, and a block may be in several of them.
#[derive(Debug)]
pub struct Pool {
    /// Keys and values of each layer, `[blocks, kv heads, 16, head_dim]` each.
    layers: Vec<[Tensor; 2]>,
    blocks: usize,
}

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
    fn check(&self, blocks: usize, vocabulary: usize) -> std::result::Result<(), String> {
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

    /// The positions of the tokens.
    fn positions(&self) -> impl Iterator<Item = usize> {
        self.runs.iter().flat_map(|run| run.first..run.first + run.count)
    }
}

impl Transformer {
    /// Memory for `blocks` blocks of 16 tokens, which is the same number on all ranks.
    ///
    /// # Errors
    /// The device has too little memory; the kernels of a CUDA device can't be compiled.
    pub fn pool(&self, blocks: usize) -> std::result::Result<Pool, ModelError> {
        let [kv_heads, head_dim] = self.kv_shape();
        prepare(self.device())?;
        let zeros = || Tensor::zeros((blocks, kv_heads, BLOCK, head_dim), self.dtype(), self.device());
        let layer = || Ok([zeros()?, zeros()?]);
        let layers = (0..self.config().layers.len()).map(|_| layer()).collect::<Result<Vec<_>>>()?;
        Ok(Pool { layers, blocks })
    }

    /// Processes the next tokens of several sequences, whose earlier ones the pool has. Returns the hidden states that are
    /// wanted, `[wanted, dim]`. All ranks call it with equal arguments.
    ///
    /// # Errors
    /// A sequence is too long, or its blocks are not those of the pool; a collective fails.
    pub fn batch(&self, pool: &mut Pool, batch: &Ragged) -> std::result::Result<Tensor, ModelError> {
        batch.check(pool.blocks, self.config().vocabulary).map_err(ModelError::Call)?;
        let longest = batch.runs.iter().map(|run| run.first + run.count).max().unwrap_or(0);
        self.check_room(longest)?;
        if let Some(first) = self.config().first_context().filter(|first| longest > *first) {
            let why = format!(
                "a sequence of {longest} tokens; in blocks, sequences have at most the {first} of the original context"
            );
            return Err(ModelError::Call(why));
        }
        let kinds = self.kinds().iter().map(|(rope, window)| {
            let rotation = rope.as_ref().map(|rope| rope.rotation_of(batch.positions())).transpose()?;
            Ok(View { rotation, mask: None, window: *window })
        });
        let positions = || batch.positions().map(|position| position as i64);
        let views = self.views(kinds, || Tensor::from_iter(positions(), self.device())?.unsqueeze(0))?;
        let rows = rows(batch, self.kv_shape(), self.device())?;
        let plan = Plan::new(&batch.runs, self.groups(), self.device())?;
        let tokens = Tensor::new(&batch.tokens[..], self.device())?.unsqueeze(0)?;
        let memories = pool.layers.iter().map(|layer| Paged { layer, plan: &plan, rows: &rows });
        let x = self.compute(&tokens, &views, memories)?.squeeze(0)?;
        let wanted = Tensor::new(&batch.wanted[..], self.device())?;
        Ok(self.last_norm(&x.index_select(&wanted, 0)?)?)
    }
}

/// The row of each new key in the memory of a layer, as rows of `head_dim` elements, once for each element: heads first.
fn rows(batch: &Ragged, [kv_heads, head_dim]: [usize; 2], device: &Device) -> Result<Tensor> {
    let places = batch.runs.iter().flat_map(|run| {
        let of = |position: usize| (run.table[position / BLOCK] as usize, position % BLOCK);
        (run.first..run.first + run.count).map(of)
    });
    let places: Vec<_> = places.collect();
    let of_head = |head| places.iter().map(move |(block, offset)| ((block * kv_heads + head) * BLOCK + offset) as u32);
    let rows: Vec<u32> = (0..kv_heads).flat_map(of_head).collect();
    let count = rows.len();
    Tensor::from_vec(rows, (count, 1), device)?.broadcast_as((count, head_dim))?.contiguous()
}

/// A layer's blocks, and where new tokens go.
struct Paged<'a> {
    layer: &'a [Tensor; 2],
    plan: &'a Plan<'a>,
    rows: &'a Tensor,
}

impl Memory for Paged<'_> {
    fn attend(self, heads: &Heads, view: &View, query: &Tensor, new: [&Tensor; 2]) -> Result<Tensor> {
        for (memory, new) in self.layer.iter().zip(new) {
            let (_, _, _, width) = memory.dims4()?;
            memory.reshape(((), width))?.scatter_set(self.rows, &new.contiguous()?.reshape(((), width))?, 0)?;
        }
        let mut scope = Scope::new(self.plan);
        (scope.window, scope.cap) = (view.window, heads.softcap);
        scope.sinks = heads.sinks.as_ref().map(|(_, sinks)| &sinks[..]);
        attention(&query.contiguous()?, &self.layer[0], &self.layer[1], scope)
    }
}
