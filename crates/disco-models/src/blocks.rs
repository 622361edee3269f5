//! The memory of keys and values, in blocks of 16 tokens, and where the tokens of a pass are in it.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use disco_candle::DeltaState;
use disco_candle::paged::{BLOCK, Memory as KeysValues, MemorySizes, Plan, Run, Scope, Sinks, host_dtype};

use crate::Attention;
use crate::states::States;

/// Keys and values of the kv heads of one rank, in blocks of 16 tokens, and the states of linear attention. A sequence has a table of its blocks, in the order of
/// its tokens; who makes the tables is the program's part, and a block may be in several of them.
#[derive(Debug)]
pub struct Pool {
    memories: Vec<KeysValues>,
    blocks: usize,
    pub(crate) states: States,
}

/// What a rank keeps of a token in one layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) has_values: bool,
}

impl Kept {
    fn sizes(&self, blocks: usize) -> MemorySizes {
        let &Self { kv_heads, head_dim: width, has_values } = self;
        MemorySizes { blocks, kv_heads, width, has_values }
    }
}

impl Pool {
    pub(crate) fn new(
        blocks: usize,
        all: &[Kept],
        start: Vec<DeltaState>,
        (dtype, device): (DType, &Device),
    ) -> Result<Self> {
        let memories = all.iter().map(|kept| KeysValues::zeros(kept.sizes(blocks), dtype, device));
        Ok(Self { memories: memories.collect::<Result<_>>()?, blocks, states: States::new(start) })
    }

    /// As [`new`](Self::new), with the keys and values and so many kept states, from a number on, in host memory as they are there. `keep`
    /// gets the name of the memory, the type and the number of elements.
    pub(crate) fn kept(
        blocks: usize,
        all: &[Kept],
        start: Vec<DeltaState>,
        dtype: DType,
        (first_kept, kept_states): (u32, usize),
        mut keep: impl FnMut(&str, disco_core::DType, usize) -> disco_core::Result<disco_core::Tensor>,
    ) -> Result<Self> {
        let mut keep = |name: &str, dtype, count| keep(name, dtype, count).map_err(disco_candle::to_candle);
        let count = all.iter().map(|kept| kept.sizes(blocks).all_elements()).sum();
        let (tensor, mut first) = (keep("disco.models keys and values", host_dtype(dtype)?, count)?, 0);
        let memories = all.iter().map(|kept| {
            let sizes = kept.sizes(blocks);
            first += sizes.all_elements();
            KeysValues::within(sizes, &tensor, first - sizes.all_elements())
        });
        let (memories, mut states) = (memories.collect::<Result<_>>()?, States::new(start));
        if states.is_needed() {
            let count = kept_states * states.count();
            states = states.within(first_kept, keep("disco.models states", disco_core::DType::F32, count)?);
        }
        Ok(Self { memories, blocks, states })
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.memories.iter().map(KeysValues::bytes).sum::<usize>() + self.states.bytes()
    }

    /// Moves the blocks to memory for `blocks` blocks, which are more.
    pub(crate) fn grow(&mut self, blocks: usize) -> Result<()> {
        self.memories.iter_mut().try_for_each(|memory| memory.grow(blocks))?;
        self.blocks = blocks;
        Ok(())
    }

    /// A memory for the pass of a layer with heads of the kind `heads`.
    pub(crate) fn memory<'a>(&'a self, number: usize, heads: usize, places: &'a Places<'_>) -> Memory<'a> {
        Memory { kept: &self.memories[number], places: &places.kinds[heads] }
    }
}

/// Where the tokens of a pass are, the same for all layers. It is on the model's device.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    /// The position of each token in its sequence, u32 `[tokens]`.
    pub(crate) positions: Tensor,
    /// One for each kind of heads.
    kinds: Vec<OfHeads<'a>>,
}

/// The places for layers with the same heads.
#[derive(Debug)]
struct OfHeads<'a> {
    plan: Plan<'a>,
    /// The row of each new key in the memory of a layer, as rows of `head_dim` elements, heads first: u32
    /// `[kv heads * tokens, 1]`; empty on the host.
    rows: Tensor,
}

impl<'a> Places<'a> {
    /// `kinds` has the query heads of each kv head, for each kind of heads. `memory` has [`Places::numbers`] numbers u32 for a
    /// pool of so many blocks: all places are stored there. A graph that has read those of a pass with as many runs and tokens
    /// reads these.
    pub(crate) fn new(
        runs: &'a [Run],
        kinds: &'a [Vec<Range<usize>>],
        memory: Option<(&Tensor, usize)>,
        device: &Device,
    ) -> Result<Self> {
        let positions = runs.iter().flat_map(|run| (run.first..run.first + run.count).map(|at| at as u32));
        let mut numbers: Vec<u32> = positions.collect();
        let (tokens, mut plans) = (numbers.len(), Vec::with_capacity(kinds.len()));
        for groups in kinds {
            let plan = Plan::new(runs, groups)?;
            let mut words = if device.is_cuda() { plan.words() } else { Vec::new() };
            if let Some((_, blocks)) = memory {
                words.resize(Self::words(runs.len(), groups.len(), blocks), 0);
            }
            // The host finds them in the plan.
            let rows = if device.is_cpu() { Vec::new() } else { rows(runs, groups.len()) };
            plans.push((plan, numbers.len(), words.len(), rows.len()));
            numbers.extend(words.into_iter().chain(rows));
        }
        let count = numbers.len();
        let mut all = Tensor::from_vec(numbers, count, device)?;
        if let Some((memory, _)) = memory {
            memory.slice_set(&all, 0, 0)?;
            all = memory.clone();
        }
        let of_heads = |(plan, first, words, rows): (Plan<'a>, usize, usize, usize)| {
            Ok(OfHeads {
                plan: plan.on_device(all.narrow(0, first, words)?),
                rows: all.narrow(0, first + words, rows)?.unsqueeze(1)?,
            })
        };
        Ok(Self {
            positions: all.narrow(0, 0, tokens)?,
            kinds: plans.into_iter().map(of_heads).collect::<Result<_>>()?,
        })
    }

    /// How many numbers the places of `runs` runs of one token have, in a pool of `blocks` blocks.
    #[cfg(feature = "cuda")]
    pub(crate) fn numbers(runs: usize, kinds: &[Vec<Range<usize>>], blocks: usize) -> usize {
        let of_heads = kinds.iter().map(|groups| Self::words(runs, groups.len(), blocks) + runs * groups.len());
        runs + of_heads.sum::<usize>()
    }

    /// The most words of a plan of `runs` runs of one token: a tile each, two words for each kv head, and the tables.
    fn words(runs: usize, kv_heads: usize, blocks: usize) -> usize {
        4 * runs + 2 * kv_heads + blocks
    }
}

fn rows(runs: &[Run], kv_heads: usize) -> Vec<u32> {
    let places = runs.iter().flat_map(|run| {
        let of = |position: usize| (run.table[position / BLOCK] as usize, position % BLOCK);
        (run.first..run.first + run.count).map(of)
    });
    let places: Vec<_> = places.collect();
    let of_head = |head| places.iter().map(move |(block, offset)| ((block * kv_heads + head) * BLOCK + offset) as u32);
    (0..kv_heads).flat_map(of_head).collect()
}

/// What the heads of a layer have in common, and the sinks of those of one rank.
#[derive(Debug)]
pub(crate) struct Heads {
    pub(crate) head_dim: usize,
    pub(crate) softcap: Option<f64>,
    pub(crate) looks_ahead: bool,
    pub(crate) sinks: Option<Sinks>,
}

impl Heads {
    pub(crate) fn new(config: &Attention, sinks: Option<Sinks>) -> Self {
        let &Attention { head_dim, softcap, looks_ahead, .. } = config;
        Self { head_dim, softcap, looks_ahead, sinks }
    }
}

/// The keys and values of one layer, and where the new ones go.
pub(crate) struct Memory<'a> {
    kept: &'a KeysValues,
    places: &'a OfHeads<'a>,
}

impl Memory<'_> {
    /// Stores keys and values `[1, kv heads, tokens, head_dim]` of new tokens, unless another layer has stored them, and
    /// returns the attention of their queries, `[1, heads, tokens, head_dim]`, to `window` tokens.
    pub(crate) fn attend(
        self,
        heads: &Heads,
        window: Option<usize>,
        query: &Tensor,
        new: Option<(Tensor, Option<Tensor>)>,
    ) -> Result<Tensor> {
        let OfHeads { plan, rows } = self.places;
        if let Some((keys, values)) = &new {
            self.kept.store(plan, rows, keys, values.as_ref())?;
        }
        let mut scope = Scope::new(plan);
        (scope.window, scope.cap, scope.sinks) = (window, heads.softcap, heads.sinks.as_ref());
        scope.looks_ahead = heads.looks_ahead;
        self.kept.attend(&query.contiguous()?, scope)
    }
}
