//! Attention over the heads of one rank.

use std::ops::Range;

use candle_core::{DType, Module as _, Tensor};
use disco_candle::Comm;
use disco_candle::HeadPlan;
use disco_candle::RowParallelLinear;

use crate::cache::{Layer, Slots};
use crate::head_norms::HeadNorms;
use crate::names::Role;
use crate::parts::{Parts, Stack};
use crate::rope::Rotation;
use crate::{Config, ModelError};

/// The query and kv heads of one rank in one layer.
#[derive(Debug)]
pub(crate) struct Attention {
    projections: Stack,
    norms: Option<HeadNorms>,
    output: RowParallelLinear,
    /// For each kv head of this rank, the query heads that share it; both are numbered from the rank's first head.
    groups: Vec<Range<usize>>,
    head_dim: usize,
    /// Factor of the products of query and key.
    factor: f64,
    is_rotated: bool,
    is_windowed: bool,
    score_cap: Option<f64>,
}

/// State that the tokens of one forward pass share.
#[derive(Debug)]
pub(crate) struct Pass {
    /// For layers without and with a window; `None` if the model has no such layer.
    pub(crate) views: [Option<View>; 2],
    /// The slots of the tokens.
    pub(crate) slots: Slots,
}

/// Positions and mask of the tokens of a forward pass, in one kind of layers.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) rotation: Rotation,
    pub(crate) mask: Option<Tensor>,
}

impl Attention {
    pub(crate) fn load(
        parts: &Parts<'_>,
        config: &Config,
        heads: &HeadPlan,
        layer: usize,
        comm: &Comm,
    ) -> Result<Self, ModelError> {
        let (query, kv) = (heads.query(comm.rank()), heads.kv(comm.rank()));
        let shared = config.heads / config.kv_heads;
        let groups = kv.clone().map(|kv| {
            let all = kv * shared..(kv + 1) * shared;
            all.start.max(query.start) - query.start..all.end.min(query.end) - query.start
        });
        let (queries, keys) = (query.len() * config.head_dim, kv.len() * config.head_dim);
        let projections = if config.features.fused {
            parts.fused(layer, Role::Qkv, vec![queries, keys, keys])
        } else {
            parts.stack(layer, &[Role::Query, Role::Key, Role::Value])
        };
        let name = |role| parts.names.layer(layer, role);
        let features = &config.features;
        let output_bias = parts.bias(layer, Role::Output)?;
        Ok(Self {
            projections: projections?,
            norms: HeadNorms::load(parts, config, heads, layer, comm)?,
            output: RowParallelLinear::new(parts.matrix(&name(Role::Output))?, output_bias, comm.clone()),
            groups: groups.collect(),
            head_dim: config.head_dim,
            factor: features.attention_factor.unwrap_or((config.head_dim as f64).powf(-0.5)),
            is_rotated: !features.unrotated.contains(&layer),
            is_windowed: features.is_windowed(layer),
            score_cap: features.score_cap,
        })
    }

    /// The shape of keys and values of one token of each sequence.
    pub(crate) fn shape(&self, sequences: usize) -> [usize; 4] {
        [sequences, self.groups.len(), 1, self.head_dim]
    }

    /// The attention of all ranks for `x`, `[sequences, tokens, dim]`.
    pub(crate) fn forward(&self, x: &Tensor, pass: &Pass, cache: &mut Layer) -> candle_core::Result<Tensor> {
        let (sequences, tokens, _) = x.dims3()?;
        let view = pass.views[usize::from(self.is_windowed)].as_ref();
        let view = view.ok_or_else(|| candle_core::Error::Msg("a kind of layers has no view".into()))?;
        let projected = self.projections.forward(x)?;
        let both = [projected.at(0)?, projected.at(1)?];
        let [query, key] = self.norms.iter().try_fold(both, |both, norms| norms.forward(both, self.head_dim))?;
        let by_head = |x: &Tensor| x.reshape((sequences, tokens, (), self.head_dim))?.transpose(1, 2)?.contiguous();
        let turned = |x: &Tensor| {
            let x = by_head(x)?;
            if self.is_rotated { view.rotation.apply(&x) } else { Ok(x) }
        };
        let (query, key) = ((turned(&query)? * self.factor)?, turned(&key)?);
        let [keys, values] = cache.append(&pass.slots, [&key, &by_head(&projected.at(2)?)?])?;
        let y = self.attend(&query, &keys, &values, view.mask.as_ref())?;
        self.output.forward(&y.transpose(1, 2)?.reshape((sequences, tokens, ()))?)
    }

    /// The attention of each query head: `[sequences, heads, tokens, head_dim]`.
    fn attend(
        &self,
        query: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: Option<&Tensor>,
    ) -> candle_core::Result<Tensor> {
        let size = self.groups[0].len();
        if self.groups.iter().all(|group| group.len() == size) {
            return self.attend_equally(query, keys, values, mask);
        }
        let groups = self.groups.iter().enumerate().map(|(kv, group)| {
            let query = query.narrow(1, group.start, group.len())?;
            self.attend_equally(&query, &keys.narrow(1, kv, 1)?, &values.narrow(1, kv, 1)?, mask)
        });
        Tensor::cat(&groups.collect::<candle_core::Result<Vec<_>>>()?, 1)
    }

    /// Attention where each kv head belongs to the same number of query heads.
    fn attend_equally(
        &self,
        query: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: Option<&Tensor>,
    ) -> candle_core::Result<Tensor> {
        let (sequences, heads, tokens, width) = query.dims4()?;
        let (_, kv_heads, slots, _) = keys.dims4()?;
        // The query heads of a kv head are rows of one matrix, so that keys and values are not repeated.
        let query = query.reshape((sequences, kv_heads, (), width))?;
        let mut scores = query.matmul(&keys.t()?)?.reshape((sequences, heads, tokens, slots))?;
        if let Some(cap) = self.score_cap {
            scores = capped(&scores, cap)?;
        }
        if let Some(mask) = mask {
            scores = scores.broadcast_add(mask)?;
        }
        // Sums of exponentials need more than the precision of 16 bits.
        let shares = candle_nn::ops::softmax_last_dim(&scores.to_dtype(DType::F32)?)?.to_dtype(query.dtype())?;
        let shares = shares.reshape((sequences, kv_heads, (), slots))?;
        shares.matmul(values)?.reshape((sequences, heads, tokens, width))
    }
}

/// `x` between `cap` and its negative.
pub(crate) fn capped(x: &Tensor, cap: f64) -> candle_core::Result<Tensor> {
    (x / cap)?.tanh()? * cap
}
