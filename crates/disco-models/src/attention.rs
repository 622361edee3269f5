//! Attention over the heads of one rank.

use std::ops::Range;

use candle_core::{Module as _, Tensor};
use disco_candle::Comm;
use disco_candle::HeadPlan;
use disco_candle::RowParallelLinear;

use crate::head_norms::HeadNorms;
use crate::heads::Heads;
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
    heads: Heads,
    /// Factor of the products of query and key.
    factor: f64,
    is_rotated: bool,
    is_windowed: bool,
}

/// What layers without and with a window share in one forward pass; `None` if the model has no such layer.
pub(crate) type Views = [Option<View>; 2];

/// Positions of the tokens of a forward pass, and the tokens that they attend to, in one kind of layers.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) rotation: Rotation,
    /// For memory whose slots all tokens see, unless the mask excludes them.
    pub(crate) mask: Option<Tensor>,
    /// The number of tokens that a token attends to, itself included.
    pub(crate) window: Option<usize>,
}

/// The keys and values of one layer.
pub(crate) trait Memory {
    /// Stores keys and values `[sequences, kv heads, tokens, head_dim]` of new tokens, and returns the attention of their
    /// queries, `[sequences, heads, tokens, head_dim]`.
    fn attend(self, heads: &Heads, view: &View, query: &Tensor, new: [&Tensor; 2]) -> candle_core::Result<Tensor>;
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
            heads: Heads { groups: groups.collect(), head_dim: config.head_dim, score_cap: features.score_cap },
            factor: features.attention_factor.unwrap_or((config.head_dim as f64).powf(-0.5)),
            is_rotated: !features.unrotated.contains(&layer),
            is_windowed: features.is_windowed(layer),
        })
    }

    /// The shape of keys and values of one token of each sequence.
    pub(crate) fn shape(&self, sequences: usize) -> [usize; 4] {
        [sequences, self.heads.groups.len(), 1, self.heads.head_dim]
    }

    /// The query heads of each kv head.
    pub(crate) fn groups(&self) -> &[Range<usize>] {
        &self.heads.groups
    }

    /// The attention of all ranks for `x`, `[sequences, tokens, dim]`.
    pub(crate) fn forward(&self, x: &Tensor, views: &Views, memory: impl Memory) -> candle_core::Result<Tensor> {
        let (sequences, tokens, _) = x.dims3()?;
        let head_dim = self.heads.head_dim;
        let view = views[usize::from(self.is_windowed)].as_ref();
        let view = view.ok_or_else(|| candle_core::Error::Msg("a kind of layers has no view".into()))?;
        let projected = self.projections.forward(x)?;
        let both = [projected.at(0)?, projected.at(1)?];
        let [query, key] = self.norms.iter().try_fold(both, |both, norms| norms.forward(both, head_dim))?;
        let by_head = |x: &Tensor| x.reshape((sequences, tokens, (), head_dim))?.transpose(1, 2)?.contiguous();
        let turned = |x: &Tensor| {
            let x = by_head(x)?;
            if self.is_rotated { view.rotation.apply(&x) } else { Ok(x) }
        };
        let (query, key) = ((turned(&query)? * self.factor)?, turned(&key)?);
        let y = memory.attend(&self.heads, view, &query, [&key, &by_head(&projected.at(2)?)?])?;
        self.output.forward(&y.transpose(1, 2)?.reshape((sequences, tokens, ()))?)
    }
}
