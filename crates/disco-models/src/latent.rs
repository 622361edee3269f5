//! Multi-head latent attention over the query heads of one rank.
//!
//! The memory has one latent vector for each token, and the rotated elements of its key, which all heads share. Queries are
//! multiplied by the matrix that makes keys of latent vectors, and the attention, a mean of latent vectors, by the one that
//! makes values: keys and values of heads are never computed, nor kept. Source: <https://arxiv.org/abs/2405.04434>.

use candle_core::{D, Module as _, Tensor};
use disco_candle::{Comm, HeadPlan, Matrix};

use crate::attention::View;
use crate::blocks::{Heads, Memory};
use crate::names::Role;
use crate::norm::Norm;
use crate::parts::{Parts, Stack};
use crate::ranks::Output;
use crate::{Attention, Latent, ModelError};

/// Epsilon of the norms of latent vectors, whatever the model's is. Source: transformers 5.17.
const EPS: f64 = 1e-6;

/// The query heads of one rank in one layer.
#[derive(Debug)]
pub(crate) struct LatentAttention {
    /// Of the hidden state: queries, or their latent vector; the latent vector of keys and values.
    down: Stack,
    /// The norm of latent queries, and queries of them.
    queries: Option<(Norm, Matrix)>,
    norm: Norm,
    /// From plain queries to latent vectors, and from those to values.
    keys: ByHead,
    values: ByHead,
    output: Output,
    heads: Heads,
    widths: Latent,
    factor: f64,
}

/// A matrix of each head.
#[derive(Debug)]
enum ByHead {
    Host(Vec<Matrix>),
    /// `[1, heads, inputs, outputs]`.
    Device(Tensor),
}

impl ByHead {
    /// Those of both weights, `[1, heads, inputs, outputs]`, which `weights` reads if they are not on the shelf.
    fn both(
        parts: &Parts<'_>,
        key: &str,
        weights: impl FnOnce() -> Result<[Tensor; 2], ModelError>,
    ) -> Result<[Self; 2], ModelError> {
        if !parts.is_host() {
            let [keys, values] = weights()?;
            return Ok([Self::Device(keys.contiguous()?), Self::Device(values.contiguous()?)]);
        }
        let mut keys = parts.shelved(key, || {
            let mut all = Vec::new();
            for heads in weights()? {
                let heads = heads.squeeze(0)?;
                let matrix = |head| Matrix::inference(heads.get(head)?.t()?);
                all.extend((0..heads.dim(0)?).map(matrix).collect::<candle_core::Result<Vec<_>>>()?);
            }
            Ok(all)
        })?;
        let values = keys.split_off(keys.len() / 2);
        Ok([Self::Host(keys), Self::Host(values)])
    }

    /// `[1, heads, tokens, inputs]` to `[1, heads, tokens, outputs]`.
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Host(matrices) => {
                let of_head = |(head, matrix): (usize, &Matrix)| matrix.forward(&x.narrow(1, head, 1)?);
                let outputs = matrices.iter().enumerate().map(of_head);
                Tensor::cat(&outputs.collect::<candle_core::Result<Vec<_>>>()?, 1)
            }
            Self::Device(weights) => x.contiguous()?.matmul(weights),
        }
    }
}

impl LatentAttention {
    pub(crate) fn load(
        parts: &Parts<'_>,
        (config, widths): (&Attention, Latent),
        plan: &HeadPlan,
        layer: usize,
        comm: &Comm,
    ) -> Result<Self, ModelError> {
        let heads = plan.query(comm.rank()).len();
        let norm = |role| parts.norm_with(&parts.names.layer(layer, role), EPS);
        let queries = widths
            .query_rank
            .map(|_| Ok::<_, ModelError>((norm(Role::QueryDownNorm)?, parts.layer_matrix(layer, Role::QueryUp)?)));
        let elements: Vec<_> = plan.elements(widths.value).collect();
        let roles = config.projections.roles().iter();
        let down = roles.map(|role| {
            let bias = (config.input_bias && *role != Role::Query).then(|| parts.bias(layer, *role)).transpose()?;
            Ok::<_, ModelError>((parts.layer_matrix(layer, *role)?, bias))
        });
        let name = |role| parts.names.layer(layer, role);
        let of_heads = if widths.apart { Role::LatentKeys } else { Role::LatentUp };
        let [keys, values] = ByHead::both(parts, &name(of_heads), || {
            let first = parts.tensor(&name(of_heads))?;
            let (keys, values) = if widths.apart {
                let values = parts.tensor(&name(Role::LatentValues))?;
                (first.transpose(1, 2)?.unsqueeze(0)?, values.unsqueeze(0)?)
            } else {
                let both = first.reshape((1, heads, widths.plain + widths.value, widths.rank))?;
                (both.narrow(2, 0, widths.plain)?, both.narrow(2, widths.plain, widths.value)?)
            };
            Ok([keys, values.transpose(2, 3)?])
        })?;
        Ok(Self {
            down: Stack::Separate(down.collect::<Result<_, _>>()?),
            queries: queries.transpose()?,
            norm: norm(Role::LatentNorm)?,
            keys,
            values,
            output: parts.output((layer, Role::Output, config.output_bias), (&elements, widths.value), comm)?,
            heads: Heads::new(config, None),
            widths,
            factor: config.factor,
        })
    }

    /// The attention of all ranks for `x`, `[1, tokens, dim]`.
    pub(crate) fn forward(&self, x: &Tensor, view: &View, memory: Memory<'_>) -> candle_core::Result<Tensor> {
        let Latent { rank, plain, rotated, .. } = self.widths;
        let (one, tokens, _) = x.dims3()?;
        let down = self.down.forward(x)?;
        let query = match &self.queries {
            Some((norm, up)) => up.forward(&norm.forward(&down.at(0)?)?)?,
            None => down.at(0)?,
        };
        if query.elem_count() == 0 {
            // A rank without heads.
            return self.output.forward(query);
        }
        let rotate = |x: &Tensor| view.rotation.as_ref().map_or_else(|| Ok(x.clone()), |rotation| rotation.apply(x));
        let query = query.reshape((one, tokens, (), plain + rotated))?.transpose(1, 2)?;
        let of_latent = self.keys.forward(&query.narrow(D::Minus1, 0, plain)?)?;
        let query = Tensor::cat(&[of_latent, rotate(&query.narrow(D::Minus1, plain, rotated)?)?], D::Minus1)?;
        let query = (query * self.factor)?;
        let both = down.at(1)?;
        let latent = self.norm.forward(&both.narrow(D::Minus1, 0, rank)?.contiguous()?)?.unsqueeze(1)?;
        let key = rotate(&both.narrow(D::Minus1, rank, rotated)?.unsqueeze(1)?)?;
        let new = Tensor::cat(&[latent, key], D::Minus1)?;
        let y = memory.attend(&self.heads, view.window, &query, Some((new, None)))?;
        let y = self.values.forward(&y.narrow(D::Minus1, 0, rank)?)?;
        self.output.forward(y.transpose(1, 2)?.reshape((one, tokens, ()))?)
    }
}
