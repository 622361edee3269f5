//! The plan of a model's splits.

use std::ops::Range;

use disco_candle::paged::BLOCK;
use disco_candle::weights::{Block, Cut, Part, Plan, Shards, Split, Weights};
use disco_candle::{Matrix, even_ranges};

use crate::names::{EXPERT, EXPERT_STACKS, Names, Role, bias};
use crate::packed::Packed;
use crate::projections::{OfHeads, Projection};
use crate::ranks::{rows_of, unit_of};
use crate::{
    Attention, Config, Dense, ExpertLayout, ExpertSplit, Experts, FeedForward, Inputs, Layer, Mixer, ModelError,
    Precision, QkNorm, Sums, stacks, tensors,
};

/// The plan of splits for `ranks` ranks: which part of each tensor a rank reads.
///
/// Query and kv heads are split as [`HeadPlan`](disco_candle::HeadPlan) says, so kv heads may be on several ranks. Hidden units of the
/// feed-forward networks and of experts are split, or whole experts are ([`Config::expert_split`]). The vocabulary is split by
/// rows. Norms are on every rank.
///
/// [`Config::sums`] says how the matrices behind heads and hidden units are split: by rows; by columns that are nodes of sums; or by
/// columns, in units of the file's quantisation blocks if there are enough.
///
/// # Errors
/// With [`Sums::Parts`], there are more ranks than query heads, units of hidden units, or experts. The weights lack a tensor of the model,
/// have it in another shape than the configuration says, or have one that would change the results and is not used (a
/// bias, a scale, an adapter).
pub fn plan(config: &Config, weights: &Weights, ranks: usize) -> Result<Plan, ModelError> {
    tensors::check(config, weights)?;
    let names = Names::of(config.names, weights);
    let mut rules = Rules { plan: Plan::new(), names, weights, ranks, dim: config.dim, sums: config.sums };
    if let Some(first) = config.layers.first() {
        if config.layers.iter().all(|layer| is_split_alike(layer, first)) {
            rules.layer("*", 0, first, config, true)?;
        } else {
            let alike = experts_of_all(config);
            if let Some((number, experts)) = alike {
                rules.experts("*", number, experts, config)?;
            }
            for (number, layer) in config.layers.iter().enumerate() {
                let pattern = number.to_string();
                rules.layer(&pattern, number, layer, config, alike.is_none())?;
            }
        }
    }
    let rows = Split::even(0, 1);
    if config.layer_inputs.is_some() {
        rules.add(&names.layer_inputs()[0], rows.clone());
    }
    Ok(rules.plan.with(&names.embedding(), rows.clone()).with(names.logits(), rows).with("*", Split::Whole))
}

/// Bytes of a rank's weights in memory, at most.
pub fn memory_bytes(config: &Config, shards: &Shards, precision: Precision) -> u64 {
    let (weights, is_as_in_files) = (shards.weights(), precision == Precision::File);
    let (names, size) = (Names::of(config.names, weights), shards.dtype().size_in_bytes());
    let mut read = shards.memory_bytes(is_as_in_files);
    // Towers, and layers behind the last one.
    let unread =
        weights.names().filter(|name| names.is_skipped(name) || names.layer_of(name) >= Some(config.layers.len()));
    let unread = unread.filter_map(|name| shards.memory_bytes_of(name, is_as_in_files).ok());
    read = read.saturating_sub(unread.sum());
    for (number, layer) in config.layers.iter().enumerate() {
        let Some(experts) = layer.experts().filter(|experts| experts.layout.is_transposed()) else {
            continue;
        };
        // Each rank keeps its own part of whole stacks, expanded.
        let stacks = stacks::tensors(&names, weights, experts, number, config.dim).into_iter();
        let whole = stacks.filter(|(_, shape)| shape.len() > 2);
        let whole = whole.filter_map(|(name, _)| shards.memory_bytes_of(&name, is_as_in_files).ok()).sum();
        let ranks = shards.size();
        let most = |rows: usize| rows_of(rows, ranks).map(|own| own.len()).max().unwrap_or(0);
        // The elements of an expert in three matrices.
        let (count, elements) = match config.expert_split {
            ExpertSplit::Over => (experts.count.div_ceil(ranks), 3 * config.dim * experts.ffn),
            ExpertSplit::Within => {
                let units = most(experts.ffn);
                (experts.count, 2 * config.dim * units + (experts.ffn * most(config.dim)).max(config.dim * units))
            }
        };
        let own = count.saturating_mul(elements).saturating_mul(size);
        read = read.saturating_sub(whole).saturating_add(own as u64);
    }
    if config.packing.is_none() {
        return read;
    }
    let expanded = tensors::matrix_shapes(config, weights).into_iter().filter_map(|(name, shape)| {
        Packed::find(config.packing, weights, &name, shape)?;
        let part = shards.plan().part(&name, &shape, shards.rank(), shards.size()).ok()?;
        let own = match part {
            Part::Range { dim, range } => range.len() * shape[1 - dim],
            Part::Ranges { dim, ranges } => ranges.iter().map(Range::len).sum::<usize>() * shape[1 - dim],
            _ => shape[0] * shape[1],
        };
        Some((own * size) as u64)
    });
    read.saturating_add(expanded.sum())
}

/// Bytes of the keys and values of a block of tokens, on the rank that keeps most.
///
/// # Errors
/// The query heads do not divide by the kv heads.
pub fn block_bytes(config: &Config, ranks: usize, precision: Precision) -> Result<usize, ModelError> {
    let of_layer = |attention: &Attention| {
        let heads = config.sums.heads(attention, ranks)?;
        let most = (0..ranks).map(|rank| heads.kv(rank).len()).max().unwrap_or(0);
        // A latent vector is key and value.
        let tensors = if attention.projections.latent().is_some() { 1 } else { 2 };
        Ok::<_, ModelError>(tensors * most * attention.head_dim)
    };
    let layers = config.attentions().filter(|attention| attention.has_memory());
    Ok(BLOCK * layers.map(of_layer).sum::<Result<usize, _>>()? * precision.dtype().size_in_bytes())
}

/// Bytes of the state of a sequence in layers of linear attention, on the rank that keeps most; 0 without such layers.
pub fn state_bytes(config: &Config, ranks: usize) -> usize {
    config.layers.iter().filter_map(Layer::delta).map(|delta| delta.state_bytes(ranks)).sum()
}

/// The experts of the layers that have some, and the number of one of these layers, if all are alike. Each expert may have
/// rules of its own, so that one set of them for each layer would be too many.
fn experts_of_all(config: &Config) -> Option<(usize, &Experts)> {
    let mut all = config.layers.iter().enumerate().filter_map(|(number, layer)| Some((number, layer.experts()?)));
    let first = all.next()?;
    all.all(|(_, experts)| experts == first.1).then_some(first)
}

/// Whether the tensors of two layers have the same shapes.
fn is_split_alike(a: &Layer, b: &Layer) -> bool {
    let shape = |layer: &Layer| {
        let of_attention = layer.attention().map(|attention| {
            let &Attention { heads, kv_heads, head_dim, projections, gated, qk_norm, .. } = attention;
            (heads, kv_heads, head_dim, projections.roles(), projections.latent(), gated, qk_norm)
        });
        (of_attention, layer.delta().copied())
    };
    shape(a) == shape(b) && a.feed_forward == b.feed_forward
}

/// # Errors
/// There are fewer of them than ranks.
pub(crate) fn check_split(count: usize, what: &str, ranks: usize) -> Result<(), ModelError> {
    if count >= ranks {
        return Ok(());
    }
    Err(ModelError::Call(format!("{count} {what} can't be split over {ranks} ranks; use 1 to {count}")))
}

/// The rules so far.
struct Rules<'a> {
    plan: Plan,
    names: Names,
    weights: &'a Weights,
    ranks: usize,
    /// Elements of hidden states.
    dim: usize,
    sums: Sums,
}

impl Rules<'_> {
    fn add(&mut self, name: &str, split: Split) {
        self.plan = std::mem::take(&mut self.plan).with(name, split);
    }

    /// The dimensions of outputs and of inputs of the matrices of layers.
    fn dims(&self) -> [usize; 2] {
        if self.names.is_transposed() { [1, 0] } else { [0, 1] }
    }

    /// Adds the rules of the layers that `pattern` matches, of which `number` is one.
    fn layer(
        &mut self,
        pattern: &str,
        number: usize,
        layer: &Layer,
        config: &Config,
        with_experts: bool,
    ) -> Result<(), ModelError> {
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(pattern, attention)?,
            Mixer::Delta(delta) => {
                for (role, split) in delta.splits(self.sums, self.dim, self.ranks) {
                    self.add(&self.names.layer(pattern, role), split);
                }
            }
        }
        if let Some(dense) = layer.dense() {
            self.hidden_units(pattern, number, dense, &layer.feed_forward)?;
        }
        let experts = layer.experts().filter(|_| with_experts);
        experts.map_or(Ok(()), |experts| self.experts(pattern, number, experts, config))
    }

    fn experts(&mut self, pattern: &str, number: usize, experts: &Experts, config: &Config) -> Result<(), ModelError> {
        match config.expert_split {
            split if experts.layout.is_transposed() => {
                // Each rank reads its own part of whole stacks.
                let (count, what) = match split {
                    ExpertSplit::Over => (experts.count, "experts"),
                    ExpertSplit::Within => (experts.ffn, "hidden units of experts"),
                };
                self.check_split(count, what)
            }
            ExpertSplit::Over => self.whole_experts(pattern, experts),
            ExpertSplit::Within => self.units_of_experts(pattern, number, experts),
        }
    }

    fn attention(&mut self, pattern: &str, attention: &Attention) -> Result<(), ModelError> {
        let &Attention { heads, kv_heads, head_dim, qk_norm, .. } = attention;
        let (ranks, names, [rows, columns]) = (self.ranks, self.names, self.dims());
        self.check_split(heads, "query heads")?;
        let plan = self.sums.heads(attention, ranks)?;
        let values = heads * attention.value_dim();
        let is_rows = self.sums != Sums::Parts && self.sums.nodes(values, attention.value_dim(), ranks).is_none();
        let elements = |heads: Range<usize>, width| heads.start * width..heads.end * width;
        let query = |width| (0..ranks).map(|rank| elements(plan.query(rank), width)).collect::<Vec<_>>();
        let kv = |width| (0..ranks).map(|rank| elements(plan.kv(rank), width)).collect::<Vec<_>>();
        let output = if is_rows { self.outputs(rows) } else { Split::ranges(columns, query(attention.value_dim())) };
        self.add(&names.layer(pattern, Role::Output), output);
        for Projection { role, heads: of, .. } in attention.matrices(0) {
            let split = |dim| match of {
                OfHeads::Query(width) => Split::ranges(dim, query(width)),
                OfHeads::Kv(width) => Split::ranges(dim, kv(width)),
                OfHeads::Fused => {
                    let keys = Block::new(kv_heads * head_dim, Cut::Ranges(kv(head_dim)));
                    let queries = Block::new(heads * head_dim, Cut::Ranges(query(head_dim)));
                    Split::fused(dim, [queries, keys.clone(), keys])
                }
                OfHeads::Whole => Split::Whole,
            };
            let name = names.layer(pattern, role);
            self.add(&name, split(rows));
            self.add(&bias(&name), split(0));
        }
        for (role, _) in attention.stacks() {
            self.add(&names.layer(pattern, role), Split::ranges(0, query(1)));
        }
        if qk_norm == QkNorm::Joint {
            self.add(&names.layer(pattern, Role::QueryNorm), Split::ranges(0, query(head_dim)));
            self.add(&names.layer(pattern, Role::KeyNorm), Split::ranges(0, kv(head_dim)));
        }
        Ok(())
    }

    /// Hidden units of a feed-forward network are split over the ranks.
    fn hidden_units(
        &mut self,
        pattern: &str,
        number: usize,
        dense: &Dense,
        network: &FeedForward,
    ) -> Result<(), ModelError> {
        let (names, [rows, columns]) = (self.names, self.dims());
        let [gate, up, down] = network.dense_roles();
        let unit = self.unit_of(&names.layer(number, down), dense.ffn)?;
        let nodes = self.sums.of_units(network).nodes(dense.ffn, 1, self.ranks);
        let split = match &nodes {
            Some(parts) => Split::ranges(columns, parts.iter().cloned()),
            None => self.behind_units([rows, columns], unit),
        };
        self.add(&names.layer(pattern, down), split);
        let cut = nodes.map_or(Cut::Even { unit }, Cut::Ranges);
        let units = || Block::new(dense.ffn, cut.clone());
        let (inputs, blocks): (&[Role], _) = match dense.inputs {
            Inputs::Gated => (&[gate, up], vec![units()]),
            Inputs::Plain => (&[up], vec![units()]),
            Inputs::Fused => (&[Role::GateUp], vec![units(), units()]),
        };
        for role in inputs {
            let name = names.layer(pattern, *role);
            self.add(&name, Split::fused(rows, blocks.clone()));
            self.add(&bias(&name), Split::fused(0, blocks.clone()));
        }
        Ok(())
    }

    /// The split of a matrix behind hidden units, with the dimensions of its outputs and inputs.
    fn behind_units(&self, [rows, columns]: [usize; 2], unit: usize) -> Split {
        if self.sums != Sums::Parts { self.outputs(rows) } else { Split::even(columns, unit) }
    }

    /// Each rank has some outputs of hidden states.
    fn outputs(&self, rows: usize) -> Split {
        Split::even(rows, unit_of(self.dim, self.ranks))
    }

    /// # Errors
    /// There are fewer of them than ranks, on devices.
    fn check_split(&self, count: usize, what: &str) -> Result<(), ModelError> {
        if self.sums != Sums::Parts { Ok(()) } else { check_split(count, what, self.ranks) }
    }

    /// Hidden units that stay together. On devices, a quantisation block of the matrix `down`, whose columns they are, unless there are
    /// fewer blocks than ranks.
    ///
    /// # Errors
    /// There are fewer hidden units than ranks, on devices.
    fn unit_of(&self, down: &str, units: usize) -> Result<usize, ModelError> {
        let ranks = self.ranks;
        if self.sums != Sums::Parts {
            return Ok(unit_of(units, ranks));
        }
        // A packed matrix has another name.
        let encoding = self.weights.contains(down).then(|| self.weights.info(down)).transpose()?;
        let sizes = match encoding.and_then(|info| info.encoding().quantized()) {
            Some(dtype) => [Matrix::unit(dtype), dtype.block_size(), 1],
            None => [1; 3],
        };
        let fits = |size: &usize| units.is_multiple_of(*size) && units / size >= ranks;
        sizes.into_iter().find(fits).ok_or_else(|| {
            ModelError::Call(format!(
                "{units} hidden units ({down}) can't be split over {ranks} ranks; use 1 to {units}"
            ))
        })
    }

    /// Hidden units of each expert are split over the ranks.
    fn units_of_experts(&mut self, pattern: &str, number: usize, experts: &Experts) -> Result<(), ModelError> {
        let names = self.names;
        if experts.layout == ExpertLayout::Joined {
            let [inputs, downs] = EXPERT_STACKS;
            let unit = self.unit_of(&names.module(number, downs), experts.ffn)?;
            let units = Block::even(experts.ffn, unit);
            self.add(&names.module(pattern, inputs), Split::fused(1, [units.clone(), units]));
            self.add(&names.module(pattern, downs), self.behind_units([1, 2], unit));
            return Ok(());
        }
        let unit = self.unit_of(&names.expert(number, 0, Role::ExpertDown), experts.ffn)?;
        // A stack has one dimension more.
        let first = usize::from(names.stacks_experts());
        for role in [Role::ExpertGate, Role::ExpertUp] {
            let name = names.expert(pattern, "*", role);
            self.add(&name, Split::even(first, unit));
            self.add(&bias(&name), Split::even(first, unit));
        }
        let down = names.expert(pattern, "*", Role::ExpertDown);
        self.add(&down, self.behind_units([first, first + 1], unit));
        if self.sums != Sums::Parts {
            self.add(&bias(&down), self.outputs(first));
        }
        Ok(())
    }

    /// Each rank has some experts whole.
    fn whole_experts(&mut self, pattern: &str, experts: &Experts) -> Result<(), ModelError> {
        let (ranks, names, dim, &Experts { count, ffn, .. }) = (self.ranks, self.names, self.dim, experts);
        self.check_split(count, "experts")?;
        if experts.layout == ExpertLayout::Joined {
            EXPERT_STACKS.into_iter().for_each(|role| self.add(&names.module(pattern, role), Split::even(0, 1)));
            return Ok(());
        }
        for role in EXPERT {
            if names.stacks_experts() {
                let name = names.layer(pattern, role);
                self.add(&name, Split::even(0, 1));
                self.add(&bias(&name), Split::even(0, 1));
                continue;
            }
            let rows = if role == Role::ExpertDown { dim } else { ffn };
            for expert in 0..count {
                let own = even_ranges(count, ranks).map(|own| if own.contains(&expert) { 0..rows } else { 0..0 });
                self.add(&names.expert(pattern, expert, role), Split::ranges(0, own));
            }
        }
        Ok(())
    }
}
