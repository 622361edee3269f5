//! Gated delta nets over the value heads of one rank.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use disco_candle::weights::{Block, Cut, Split};
use disco_candle::{Comm, Delta, DeltaState, DeltaTokens, Matrix, even_ranges};

use crate::names::Role;
use crate::parts::{Parts, Stack};
use crate::ranks::{Output, OutputKind, rows_of};
use crate::states::{Span, States};
use crate::{DeltaLayout, GatedDelta, ModelError, Sums};

/// The value heads of one rank in one layer, and the key heads that they need. Ranks may have none.
#[derive(Debug)]
pub(crate) struct DeltaNet {
    delta: Delta,
    /// Queries, keys and values; gates; rates; decays. None without heads.
    inputs: Option<Stack>,
    output: Output,
}

impl GatedDelta {
    /// The matrices, and their outputs and inputs.
    pub(crate) fn matrices(&self, dim: usize) -> Vec<(Role, [usize; 2])> {
        let (values, heads) = (self.value_heads * self.value_dim, self.value_heads);
        let mut all = vec![(Role::DeltaOutput, [dim, values])];
        match self.layout {
            DeltaLayout::Grouped => all.extend([
                (Role::DeltaInputs, [self.channels() + values, dim]),
                (Role::DeltaRatesDecays, [2 * heads, dim]),
            ]),
            DeltaLayout::RatesGrouped => all.extend([
                (Role::DeltaInputs, [self.channels(), dim]),
                (Role::DeltaGates, [values, dim]),
                (Role::DeltaRatesDecays, [2 * heads, dim]),
            ]),
            DeltaLayout::Apart => all.extend([
                (Role::DeltaInputs, [self.channels(), dim]),
                (Role::DeltaGates, [values, dim]),
                (Role::DeltaRates, [heads, dim]),
                (Role::DeltaDecays, [heads, dim]),
            ]),
        }
        all
    }

    /// The other tensors, and their shapes.
    pub(crate) fn vectors(&self) -> Vec<(Role, Vec<usize>)> {
        vec![
            (Role::DeltaConvolution, vec![self.channels(), 1, self.kernel]),
            (Role::DeltaScales, vec![self.value_heads]),
            (Role::DeltaBiases, vec![self.value_heads]),
            (Role::DeltaNorm, vec![self.value_dim]),
        ]
    }

    /// How the large matrices are split over ranks, for hidden states of `dim` elements. All else is read whole.
    pub(crate) fn splits(&self, sums: Sums, dim: usize, ranks: usize) -> Vec<(Role, Split)> {
        let heads: Vec<_> = even_ranges(self.value_heads, ranks).collect();
        let of_heads = |width: usize| heads.iter().map(move |own| own.start * width..own.end * width);
        let values = || Block::new(self.value_heads * self.value_dim, Cut::Ranges(of_heads(self.value_dim).collect()));
        let of_keys = heads.iter().map(|own| self.keys_of(own));
        let keys = of_keys.map(|own| own.start * self.key_dim..own.end * self.key_dim).collect();
        let keys = Block::new(self.key_heads * self.key_dim, Cut::Ranges(keys));
        let inputs = match self.layout {
            DeltaLayout::RatesGrouped | DeltaLayout::Apart => Split::fused(0, [keys.clone(), keys, values()]),
            DeltaLayout::Grouped => Split::fused(0, (0..self.key_heads).flat_map(|key| self.group(key, &heads))),
        };
        let gates = Split::ranges(0, of_heads(self.value_dim));
        let output = match sums {
            Sums::Parts => Split::ranges(1, of_heads(self.value_dim)),
            Sums::Whole | Sums::Nodes => Split::ranges(0, rows_of(dim, ranks)),
        };
        vec![(Role::DeltaInputs, inputs), (Role::DeltaGates, gates), (Role::DeltaOutput, output)]
    }

    /// The rows of a key head in the grouped layout: its query, its key, and values and gates of its value heads.
    fn group(&self, key: usize, ranks: &[Range<usize>]) -> [Block; 4] {
        let shared = self.value_heads / self.key_heads;
        let own = |rank: &Range<usize>| rank.start.max(key * shared)..rank.end.min((key + 1) * shared);
        let of_key = |rank| if own(rank).is_empty() { 0..0 } else { 0..self.key_dim };
        let of_values = |rank| {
            let heads = own(rank);
            if heads.is_empty() {
                return 0..0;
            }
            (heads.start - key * shared) * self.value_dim..(heads.end - key * shared) * self.value_dim
        };
        let head = Block::new(self.key_dim, Cut::Ranges(ranks.iter().map(of_key).collect()));
        let values = Block::new(shared * self.value_dim, Cut::Ranges(ranks.iter().map(of_values).collect()));
        [head.clone(), head, values.clone(), values]
    }

    /// Bytes of the state of a sequence, on the rank with most heads.
    pub(crate) fn state_bytes(&self, ranks: usize) -> usize {
        let elements = even_ranges(self.value_heads, ranks).map(|own| {
            let channels = 2 * self.keys_of(&own).len() * self.key_dim + own.len() * self.value_dim;
            (self.kernel - 1) * channels + own.len() * self.key_dim * self.value_dim
        });
        elements.max().unwrap_or(0) * size_of::<f32>()
    }

    /// The key heads that value heads need.
    fn keys_of(&self, values: &Range<usize>) -> Range<usize> {
        if values.is_empty() {
            return 0..0;
        }
        if self.tiled {
            let first = values.start % self.key_heads;
            let end = first + values.len();
            return if end <= self.key_heads { first..end } else { 0..self.key_heads };
        }
        let shared = self.value_heads / self.key_heads;
        values.start / shared..values.end.div_ceil(shared)
    }

    /// The key head of a value head.
    fn key_of(&self, value: usize) -> usize {
        if self.tiled { value % self.key_heads } else { value / (self.value_heads / self.key_heads) }
    }

    fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

impl DeltaNet {
    /// # Errors
    /// The device is not the host.
    #[expect(clippy::disallowed_methods, reason = "the tensors are on the host")]
    pub(crate) fn load(parts: &Parts<'_>, config: &GatedDelta, layer: usize, comm: &Comm) -> Result<Self, ModelError> {
        if !parts.shards.device().is_cpu() {
            return Err(ModelError::Feature { feature: "linear attention on devices other than the host".into() });
        }
        let values = even_ranges(config.value_heads, comm.size()).nth(comm.rank()).unwrap_or(0..0);
        let keys = config.keys_of(&values);
        let vector = |role: Role| {
            let name = parts.names.layer(layer, role);
            let tensor =
                parts.shards.weights().read(&name, &disco_candle::weights::Part::Whole, DType::F32, &Device::Cpu)?;
            Ok::<_, ModelError>(tensor)
        };
        let of_heads = |role| {
            let all = vector(role)?;
            Ok::<_, ModelError>(all.narrow(0, values.start, values.len())?.to_vec1::<f32>()?)
        };
        // The channels of this rank, by token.
        let kernels = vector(Role::DeltaConvolution)?.reshape((config.channels(), config.kernel))?;
        let all_keys = config.key_heads * config.key_dim;
        let rows = |first: usize, heads: &Range<usize>, width: usize| {
            kernels.narrow(0, first + heads.start * width, heads.len() * width)
        };
        let own = [
            rows(0, &keys, config.key_dim)?,
            rows(all_keys, &keys, config.key_dim)?,
            rows(2 * all_keys, &values, config.value_dim)?,
        ];
        let convolution = Tensor::cat(&own, 0)?.t()?.contiguous()?.flatten_all()?.to_vec1::<f32>()?;
        let key_of = values.clone().map(|head| config.key_of(head) - keys.start).collect();
        let mut delta = Delta::new(key_of, [keys.len(), config.key_dim, config.value_dim], convolution);
        delta.scales = of_heads(Role::DeltaScales)?;
        if config.logarithmic {
            delta.scales.iter_mut().for_each(|scale| *scale = -scale.exp());
        }
        delta.biases = of_heads(Role::DeltaBiases)?;
        delta.norm = vector(Role::DeltaNorm)?.to_vec1::<f32>()?;
        delta.eps = parts.config.eps as f32;
        let inputs = (!values.is_empty()).then(|| inputs(parts, config, layer, (&keys, &values))).transpose()?;
        let of_heads = |own: Range<usize>| own.start * config.value_dim..own.end * config.value_dim;
        let elements: Vec<_> = even_ranges(config.value_heads, comm.size()).map(of_heads).collect();
        let last = parts.last(layer, Role::DeltaOutput, &elements, comm)?;
        let output = Output { kind: OutputKind::Joined(last, parts.join(comm)), bias: None };
        Ok(Self { delta, inputs, output })
    }

    /// The state before the first token.
    pub(crate) fn start(&self) -> DeltaState {
        self.delta.start()
    }

    /// The output of all ranks for `x`, `[1, tokens, dim]`, whose states are those of the layer with the number `layer`.
    #[expect(clippy::disallowed_methods, reason = "the tensors are on the host")]
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        layer: usize,
        states: &States,
        spans: &[Span],
    ) -> candle_core::Result<Tensor> {
        let heads = self.delta.key_of.len();
        let widths = [self.delta.channels(), heads * self.delta.value_dim];
        let mut y = Vec::new();
        if let Some(inputs) = &self.inputs {
            let all = inputs.forward(x)?;
            let part = |number| all.at(number)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
            let [mixed, gates, rates, decays] = [part(0), part(1), part(2), part(3)];
            let (mixed, gates, rates, decays) = (mixed?, gates?, rates?, decays?);
            states.change(layer, spans, |state, tokens| {
                let of = |width: usize| tokens.start * width..tokens.end * width;
                let own = of(heads);
                let [mixed, gates] = [&mixed[of(widths[0])], &gates[of(widths[1])]];
                let tokens = DeltaTokens::new(mixed, gates, &rates[own.clone()], &decays[own]);
                y.extend(self.delta.forward(state, tokens));
            })?;
        }
        let (one, tokens, _) = x.dims3()?;
        self.output.forward(Tensor::from_vec(y, (one, tokens, widths[1]), x.device())?.to_dtype(x.dtype())?)
    }
}

/// The matrices of this rank's queries, keys and values; gates; rates; decays.
fn inputs(
    parts: &Parts<'_>,
    config: &GatedDelta,
    layer: usize,
    (keys, values): (&Range<usize>, &Range<usize>),
) -> Result<Stack, ModelError> {
    let names = [Role::DeltaInputs, Role::DeltaGates].map(|role| parts.names.layer(layer, role));
    let [rates, decays] = rates_and_decays(parts, config, layer, (keys, values))?;
    if config.layout != DeltaLayout::Grouped && parts.is_quantized(&names[0])? && parts.is_quantized(&names[1])? {
        let [rates, decays] = [Matrix::inference(rates)?, Matrix::inference(decays)?];
        let matrices = [parts.matrix(&names[0])?, parts.matrix(&names[1])?, rates, decays];
        return Ok(Stack::Separate(matrices.map(|matrix| (matrix, None)).into()));
    }
    parts.stacked(&names.join(" "), None, || {
        let all = parts.tensor(&names[0])?;
        let [mixed, gates] = match config.layout {
            DeltaLayout::Grouped => ungrouped(config, &all, (keys, values))?,
            DeltaLayout::RatesGrouped | DeltaLayout::Apart => [all, parts.tensor(&names[1])?],
        };
        Ok(vec![mixed, gates, rates, decays])
    })
}

/// The value heads that share a key head, of those of a rank.
fn sharing(config: &GatedDelta, key: usize, values: &Range<usize>) -> Range<usize> {
    let shared = config.value_heads / config.key_heads;
    values.start.max(key * shared)..values.end.min((key + 1) * shared)
}

fn rates_and_decays(
    parts: &Parts<'_>,
    config: &GatedDelta,
    layer: usize,
    (keys, values): (&Range<usize>, &Range<usize>),
) -> Result<[Tensor; 2], ModelError> {
    let tensor = |role| parts.tensor(&parts.names.layer(layer, role));
    if config.layout == DeltaLayout::Apart {
        let of_heads = |role| Ok::<_, ModelError>(tensor(role)?.narrow(0, values.start, values.len())?);
        return Ok([of_heads(Role::DeltaRates)?, of_heads(Role::DeltaDecays)?]);
    }
    // Key head by key head: rates, decays.
    let (both, shared) = (tensor(Role::DeltaRatesDecays)?, config.value_heads / config.key_heads);
    let rows = |behind: usize| {
        let of_key = |key: usize| {
            let heads = sharing(config, key, values);
            both.narrow(0, key * shared + heads.start + behind, heads.len())
        };
        Tensor::cat(&keys.clone().map(of_key).collect::<candle_core::Result<Vec<_>>>()?, 0)
    };
    Ok([rows(0)?, rows(shared)?])
}

/// Queries, keys and values, and gates, of rows that have these of each key head.
fn ungrouped(
    config: &GatedDelta,
    all: &Tensor,
    (keys, values): (&Range<usize>, &Range<usize>),
) -> candle_core::Result<[Tensor; 2]> {
    let mut parts = [const { Vec::new() }; 4];
    let mut first = 0;
    for key in keys.clone() {
        let width = sharing(config, key, values).len() * config.value_dim;
        for (part, width) in parts.iter_mut().zip([config.key_dim, config.key_dim, width, width]) {
            part.push(all.narrow(0, first, width)?);
            first += width;
        }
    }
    let [queries, of_keys, of_values, gates] = parts;
    let mixed = [queries, of_keys, of_values].concat();
    Ok([Tensor::cat(&mixed, 0)?, Tensor::cat(&gates, 0)?])
}
