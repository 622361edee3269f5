//! Gated delta nets over the value heads of one rank.

use std::ops::Range;

use candle_core::{DType, Device, Module as _, Tensor};
use disco_candle::weights::{Block, Cut, Split};
use disco_candle::{Comm, Delta, DeltaState, DeltaTokens, Matrix, even_ranges};
use disco_core::Reduction;

use crate::names::Role;
use crate::parts::Parts;
use crate::states::{Span, States};
use crate::{DeltaLayout, GatedDelta, ModelError};

/// The value heads of one rank in one layer, and the key heads that they need. Ranks may have none.
#[derive(Debug)]
pub(crate) struct DeltaNet {
    delta: Delta,
    /// The rows of queries, keys and values; gates; rates; decays, all in one; and the output. None without heads.
    matrices: Option<(Matrix, Matrix)>,
    comm: Comm,
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

    /// How the large matrices are split over ranks. All else is read whole.
    pub(crate) fn splits(&self, ranks: usize) -> Vec<(Role, Split)> {
        let heads: Vec<_> = even_ranges(self.value_heads, ranks).collect();
        let of_heads = |width: usize| heads.iter().map(move |own| own.start * width..own.end * width);
        let values = || Block::new(self.value_heads * self.value_dim, Cut::Ranges(of_heads(self.value_dim).collect()));
        let of_keys = heads.iter().map(|own| self.keys_of(own));
        let keys = of_keys.map(|own| own.start * self.key_dim..own.end * self.key_dim).collect();
        let keys = Block::new(self.key_heads * self.key_dim, Cut::Ranges(keys));
        let inputs = match self.layout {
            DeltaLayout::Apart => Split::fused(0, [keys.clone(), keys, values()]),
            DeltaLayout::Grouped => Split::fused(0, (0..self.key_heads).flat_map(|key| self.group(key, &heads))),
        };
        let gates = Split::ranges(0, of_heads(self.value_dim));
        let output = Split::ranges(1, of_heads(self.value_dim));
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
        let shared = self.value_heads / self.key_heads;
        if values.is_empty() { 0..0 } else { values.start / shared..values.end.div_ceil(shared) }
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
        let kernels = vector(Role::DeltaConvolution)?.squeeze(1)?;
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
        let shared = config.value_heads / config.key_heads;
        let key_of = values.clone().map(|head| head / shared - keys.start).collect();
        let mut delta = Delta::new(key_of, [keys.len(), config.key_dim, config.value_dim], convolution);
        delta.scales = of_heads(Role::DeltaScales)?.into_iter().map(|scale| -scale.exp()).collect();
        delta.biases = of_heads(Role::DeltaBiases)?;
        delta.norm = vector(Role::DeltaNorm)?.to_vec1::<f32>()?;
        delta.eps = parts.config.eps as f32;
        let matrices = (!values.is_empty()).then(|| {
            let inputs = Matrix::dense(inputs(parts, config, layer, (&keys, &values))?);
            Ok::<_, ModelError>((inputs, parts.layer_matrix(layer, Role::DeltaOutput)?))
        });
        Ok(Self { delta, matrices: matrices.transpose()?, comm: comm.clone() })
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
        let y = if let Some((inputs, output)) = &self.matrices {
            let all = inputs.forward(x)?.to_dtype(DType::F32)?.squeeze(0)?;
            let widths = [self.delta.channels(), heads * self.delta.value_dim, heads, heads];
            let mut first = 0;
            let parts = widths.map(|width| {
                first += width;
                all.narrow(1, first - width, width)?.flatten_all()?.to_vec1::<f32>()
            });
            let [mixed, gates, rates, decays] = parts;
            let (mixed, gates, rates, decays) = (mixed?, gates?, rates?, decays?);
            let mut y = Vec::with_capacity(gates.len());
            states.change(layer, spans, |state, tokens| {
                let of = |width: usize| tokens.start * width..tokens.end * width;
                let own = of(heads);
                let [mixed, gates] = [&mixed[of(widths[0])], &gates[of(widths[1])]];
                let tokens = DeltaTokens::new(mixed, gates, &rates[own.clone()], &decays[own]);
                y.extend(self.delta.forward(state, tokens));
            });
            let (one, tokens, _) = x.dims3()?;
            let y = Tensor::from_vec(y, (one, tokens, widths[1]), x.device())?.to_dtype(x.dtype())?;
            output.forward(&y)?
        } else {
            x.zeros_like()?
        };
        self.comm.all_reduce_in_place(&y, Reduction::Sum)?;
        Ok(y)
    }
}

/// The rows of this rank's queries, keys and values; gates; rates; decays.
fn inputs(
    parts: &Parts<'_>,
    config: &GatedDelta,
    layer: usize,
    (keys, values): (&Range<usize>, &Range<usize>),
) -> Result<Tensor, ModelError> {
    let tensor = |role| parts.tensor(&parts.names.layer(layer, role));
    let (own, all) = (values.len(), tensor(Role::DeltaInputs)?);
    let mut rows = Vec::new();
    if config.layout == DeltaLayout::Apart {
        rows.extend([all, tensor(Role::DeltaGates)?]);
        for role in [Role::DeltaRates, Role::DeltaDecays] {
            rows.push(tensor(role)?.narrow(0, values.start, own)?);
        }
        return Ok(Tensor::cat(&rows, 0)?);
    }
    // Key head by key head: query, key, values, gates; and rates, decays.
    let shared = config.value_heads / config.key_heads;
    let both = tensor(Role::DeltaRatesDecays)?;
    let (mut queries, mut of_keys, mut of_values) = (Vec::new(), Vec::new(), Vec::new());
    let (mut gates, mut rates, mut decays) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = 0;
    let mut next = |width: usize| {
        first += width;
        all.narrow(0, first - width, width)
    };
    for key in keys.clone() {
        let heads = values.start.max(key * shared)..values.end.min((key + 1) * shared);
        let width = heads.len() * config.value_dim;
        queries.push(next(config.key_dim)?);
        of_keys.push(next(config.key_dim)?);
        of_values.push(next(width)?);
        gates.push(next(width)?);
        let at = key * shared + heads.start;
        rates.push(both.narrow(0, at, heads.len())?);
        decays.push(both.narrow(0, at + shared, heads.len())?);
    }
    rows.extend([queries, of_keys, of_values, gates, rates, decays].into_iter().flatten());
    Ok(Tensor::cat(&rows, 0)?)
}
