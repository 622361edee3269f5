//! The memory of keys and values, in blocks of 16 tokens, and where the tokens of a pass are in it.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use disco_candle::paged::{BLOCK, Plan, Run, Scope, attention};

use crate::attention::Heads;

/// Keys and values of the kv heads of one rank, in blocks of 16 tokens. A sequence has a table of its blocks, in the order of
/// its tokens; who makes the tables is the program's part, and a block may be in several of them.
#[derive(Debug)]
pub struct Pool {
    /// Keys and values of each layer, `[blocks, kv heads, 16, head_dim]` each.
    layers: Vec<[Tensor; 2]>,
    blocks: usize,
}

impl Pool {
    /// Blocks for `layers` layers with keys and values of the same shape: kv heads, and elements of a head.
    pub(crate) fn new(
        blocks: usize,
        layers: usize,
        [kv_heads, head_dim]: [usize; 2],
        (dtype, device): (DType, &Device),
    ) -> Result<Self> {
        let zeros = || Tensor::zeros((blocks, kv_heads, BLOCK, head_dim), dtype, device);
        let layers = (0..layers).map(|_| Ok([zeros()?, zeros()?])).collect::<Result<_>>()?;
        Ok(Self { layers, blocks })
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes()).sum()
    }

    /// Moves the blocks to memory for `blocks` blocks, which are more.
    pub(crate) fn grow(&mut self, blocks: usize) -> Result<()> {
        for tensor in self.layers.iter_mut().flatten() {
            let mut shape = tensor.dims().to_vec();
            shape[0] = blocks;
            let larger = Tensor::zeros(&shape[..], tensor.dtype(), tensor.device())?;
            larger.slice_set(tensor, 0, 0)?;
            *tensor = larger;
        }
        self.blocks = blocks;
        Ok(())
    }

    /// The memory of each layer, for a pass.
    pub(crate) fn memories<'a>(&'a self, places: &'a Places<'_>) -> impl Iterator<Item = Memory<'a>> {
        self.layers.iter().map(|layer| Memory { layer, places })
    }
}

/// Where the tokens of a pass are, the same for all layers. It is on the model's device.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    plan: Plan<'a>,
    /// The position of each token in its sequence, u32 `[tokens]`.
    pub(crate) positions: Tensor,
    /// The row of each new key in the memory of a layer, as rows of `head_dim` elements, heads first: u32
    /// `[kv heads * tokens, 1]`.
    rows: Tensor,
}

impl<'a> Places<'a> {
    /// `groups` has the query heads of each kv head. With `memory`, u32 `[numbers]` that [`Places::numbers`] are enough for, all
    /// of it is there, and a graph that has read the places of an earlier pass with as many runs and tokens reads these.
    pub(crate) fn new(
        runs: &'a [Run],
        groups: &'a [Range<usize>],
        memory: Option<&Tensor>,
        device: &Device,
    ) -> Result<Self> {
        let plan = Plan::new(runs, groups)?;
        let positions: Vec<u32> =
            runs.iter().flat_map(|run| (run.first..run.first + run.count).map(|at| at as u32)).collect();
        let rows = rows(runs, groups.len());
        let mut numbers = if device.is_cuda() { plan.words() } else { Vec::new() };
        if let Some(memory) = memory {
            numbers.resize(memory.dim(0)?.saturating_sub(positions.len() + rows.len()), 0);
        }
        let first = [numbers.len(), numbers.len() + positions.len()];
        let counts = [positions.len(), rows.len()];
        numbers.extend(positions.into_iter().chain(rows));
        let count = numbers.len();
        let mut all = Tensor::from_vec(numbers, count, device)?;
        if let Some(memory) = memory {
            memory.slice_set(&all, 0, 0)?;
            all = memory.clone();
        }
        Ok(Self {
            positions: all.narrow(0, first[0], counts[0])?,
            rows: all.narrow(0, first[1], counts[1])?.unsqueeze(1)?,
            plan: plan.on_device(all),
        })
    }

    /// How many numbers the places of `runs` runs of one token have at most, in a pool of `blocks` blocks.
    #[cfg(feature = "cuda")]
    pub(crate) fn numbers(runs: usize, kv_heads: usize, blocks: usize) -> usize {
        // Words of a tile, a position, and a row for each kv head; two words for each kv head; the tables.
        runs * (4 + 1 + kv_heads) + 2 * kv_heads + blocks
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

/// The keys and values of one layer, and where the new ones go.
pub(crate) struct Memory<'a> {
    layer: &'a [Tensor; 2],
    places: &'a Places<'a>,
}

impl Memory<'_> {
    /// Stores keys and values `[1, kv heads, tokens, head_dim]` of new tokens, and returns the attention of their queries,
    /// `[1, heads, tokens, head_dim]`, to `window` tokens.
    pub(crate) fn attend(
        self,
        heads: &Heads,
        window: Option<usize>,
        query: &Tensor,
        new: [&Tensor; 2],
    ) -> Result<Tensor> {
        let Places { plan, rows, .. } = self.places;
        for (memory, new) in self.layer.iter().zip(new) {
            let (_, _, _, width) = memory.dims4()?;
            let rows = rows.broadcast_as((rows.dim(0)?, width))?.contiguous()?;
            memory.reshape(((), width))?.scatter_set(&rows, &new.contiguous()?.reshape(((), width))?, 0)?;
        }
        let mut scope = Scope::new(plan);
        (scope.window, scope.cap, scope.sinks) = (window, heads.softcap, heads.sinks.as_ref());
        attention(&query.contiguous()?, &self.layer[0], &self.layer[1], scope)
    }
}
