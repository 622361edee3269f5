//! Attention over the heads of one rank.

use candle_core::Tensor;
use disco_candle::Comm;
use disco_candle::{HeadPlan, sigmoid};

use crate::ModelError;
use crate::blocks::{Heads, Memory};
use crate::config::{self, Projections};
use crate::head_norms::{HeadNorms, by_head};
use crate::names::Role;
use crate::norm::Norm;
use crate::parts::{Parts, Stack};
use crate::ranks::Output;
use crate::rope::Rotation;

/// The query and kv heads of one rank in one layer.
#[derive(Debug)]
pub(crate) struct Attention {
    projections: Stack,
    kind: Projections,
    norms: Option<HeadNorms>,
    value_norm: Option<Norm>,
    /// Whether gates of outputs are behind the queries of their heads.
    is_gated: bool,
    output: Output,
    heads: Heads,
    /// Factor of the products of query and key.
    factor: f64,
}

/// What the tokens of a pass attend to in layers with equal rotary embeddings and windows.
#[derive(Debug)]
pub(crate) struct View {
    /// `None` if queries and keys are not rotated.
    pub(crate) rotation: Option<Rotation>,
    /// The number of tokens that a token attends to, itself included.
    pub(crate) window: Option<usize>,
}

impl Attention {
    pub(crate) fn load(
        parts: &Parts<'_>,
        config: &config::Attention,
        heads: &HeadPlan,
        layer: usize,
        comm: &Comm,
    ) -> Result<Self, ModelError> {
        let (query, kv) = (heads.query(comm.rank()), heads.kv(comm.rank()));
        let (queries, keys) = (query.len() * config.head_dim, kv.len() * config.head_dim);
        let projections = match config.projections.roles() {
            [Role::Qkv] => parts.fused(layer, Role::Qkv, vec![queries, keys, keys], config.input_bias),
            roles => parts.stack(layer, roles, config.input_bias),
        };
        let values: Vec<_> = heads.elements(config.head_dim).collect();
        let sinks = config.sinks.then(|| parts.sinks(layer, query.clone()));
        Ok(Self {
            projections: projections?,
            kind: config.projections,
            norms: HeadNorms::load(parts, heads, layer, comm)?,
            value_norm: config.value_norm.then(|| parts.plain_norm(config.head_dim)).transpose()?,
            is_gated: config.gated,
            output: parts.output((layer, Role::Output, config.output_bias), (&values, config.head_dim), comm)?,
            heads: Heads::new(config, sinks.transpose()?),
            factor: config.factor,
        })
    }

    /// The attention of all ranks for `x`, `[1, tokens, dim]`.
    pub(crate) fn forward(&self, x: &Tensor, view: &View, memory: Memory<'_>) -> candle_core::Result<Tensor> {
        let (one, tokens, _) = x.dims3()?;
        let head_dim = self.heads.head_dim;
        let projected = self.projections.forward(x)?;
        let (query, key, value) = match self.kind {
            Projections::Apart | Projections::Fused => {
                (projected.at(0)?, Some(projected.at(1)?), Some(projected.at(2)?))
            }
            Projections::KeysAreValues => (projected.at(0)?, Some(projected.at(1)?), Some(projected.at(1)?)),
            Projections::Shared { .. } | Projections::Latent(_) => (projected.at(0)?, None, None),
        };
        let (query, gate) = if self.is_gated {
            let both = query.reshape((one, tokens, (), 2 * head_dim))?;
            let part = |first| both.narrow(3, first, head_dim)?.reshape((one, tokens, ()));
            (part(0)?, Some(part(head_dim)?))
        } else {
            (query, None)
        };
        let (query, key) = match &self.norms {
            Some(norms) => norms.forward(query, key, head_dim)?,
            None => (query, key),
        };
        if query.elem_count() == 0 {
            // A rank without heads.
            return self.output.forward(query);
        }
        let value = match (&self.value_norm, value) {
            (Some(norm), Some(value)) => Some(by_head(norm, &value, head_dim)?),
            (_, value) => value,
        };
        let apart = |x: Tensor| x.reshape((one, tokens, (), head_dim))?.transpose(1, 2)?.contiguous();
        let rotated = |x: Tensor| view.rotation.as_ref().map_or_else(|| Ok(x.clone()), |rotation| rotation.apply(&x));
        let query = rotated(apart(query)?)?;
        let query = view.rotation.iter().try_fold(query, |query, rotation| rotation.grown(query))?;
        let query = (query * self.factor)?;
        let new = match (key, value) {
            (Some(key), Some(value)) => Some((rotated(apart(key)?)?.contiguous()?, Some(apart(value)?))),
            _ => None,
        };
        let y = memory.attend(&self.heads, view.window, &query, new)?;
        let y = y.transpose(1, 2)?.reshape((one, tokens, ()))?;
        let y = gate.iter().try_fold(y, |y, gate| y * sigmoid(gate)?)?;
        self.output.forward(y)
    }
}
