//! RMS norms of queries and keys.

use std::ops::Range;

use candle_core::{D, DType, Error, Module as _, Result, Tensor};
use disco_candle::Comm;
use disco_candle::HeadPlan;
use disco_core::Reduction;

use crate::names::Role;
use crate::norm::Norm;
use crate::parts::Parts;
use crate::{ModelError, QkNorm};

/// The norms of one rank's queries and keys in one layer.
#[derive(Debug)]
pub(crate) enum HeadNorms {
    /// Each head by itself, with the same weights: of queries, and of keys.
    Each(Norm, Option<Norm>),
    /// All heads of all ranks together: one collective sums the squares.
    Joint(JointNorms),
}

#[derive(Debug)]
pub(crate) struct JointNorms {
    /// Of this rank's elements of query and key.
    weights: [Tensor; 2],
    /// Number of elements of query and key on all ranks.
    widths: [usize; 2],
    /// This rank's elements of the key that no rank before it has, too.
    counted: Range<usize>,
    eps: f64,
    comm: Comm,
}

impl HeadNorms {
    /// The norms of a layer; `None` if the model has none.
    pub(crate) fn load(
        parts: &Parts<'_>,
        heads: &HeadPlan,
        layer: usize,
        comm: &Comm,
    ) -> std::result::Result<Option<Self>, ModelError> {
        let names = [Role::QueryNorm, Role::KeyNorm].map(|role| parts.names.layer(layer, role));
        let Some(attention) = parts.config.layers[layer].attention() else { return Ok(None) };
        match attention.qk_norm {
            QkNorm::None => Ok(None),
            QkNorm::Each => {
                let of_key = attention.has_memory().then(|| parts.norm(&names[1])).transpose()?;
                Ok(Some(Self::Each(parts.norm(&names[0])?, of_key)))
            }
            QkNorm::Joint => {
                let own = heads.kv(comm.rank());
                let first =
                    (0..comm.rank()).map(|rank| heads.kv(rank).end).max().unwrap_or(0).clamp(own.start, own.end);
                Ok(Some(Self::Joint(JointNorms {
                    weights: [parts.tensor(&names[0])?, parts.tensor(&names[1])?],
                    widths: [attention.heads, attention.kv_heads].map(|heads| heads * attention.head_dim),
                    counted: (first - own.start) * attention.head_dim..own.len() * attention.head_dim,
                    eps: parts.config.eps,
                    comm: comm.clone(),
                })))
            }
        }
    }

    /// Query and key, `[1, tokens, own elements]`, after their norms, for heads of `head_dim` elements. Keys that another
    /// layer has stored are `None`.
    pub(crate) fn forward(
        &self,
        query: Tensor,
        key: Option<Tensor>,
        head_dim: usize,
    ) -> Result<(Tensor, Option<Tensor>)> {
        match (self, key) {
            (Self::Joint(joint), Some(key)) => {
                let [query, key] = joint.forward(&query, &key)?;
                Ok((query, Some(key)))
            }
            (Self::Each(of_query, Some(of_key)), Some(key)) => {
                Ok((by_head(of_query, &query, head_dim)?, Some(by_head(of_key, &key, head_dim)?)))
            }
            (Self::Each(of_query, _), key) => Ok((by_head(of_query, &query, head_dim)?, key)),
            (Self::Joint(_), None) => Err(Error::Msg("a norm of queries and keys together, and no keys".into())),
        }
    }
}

/// The norm of each head of `head_dim` elements of `x`, `[1, tokens, own elements]`.
pub(crate) fn by_head(norm: &Norm, x: &Tensor, head_dim: usize) -> Result<Tensor> {
    let (one, tokens, elements) = x.dims3()?;
    let heads = x.reshape((one, tokens, (), head_dim))?;
    norm.forward(&heads.contiguous()?)?.reshape((one, tokens, elements))
}

impl JointNorms {
    fn forward(&self, query: &Tensor, key: &Tensor) -> Result<[Tensor; 2]> {
        let squares = |x: &Tensor| x.to_dtype(DType::F32)?.sqr()?.sum_keepdim(D::Minus1);
        let of_query = squares(query)?;
        let of_key = match self.counted.len() {
            0 => of_query.zeros_like()?,
            len => squares(&key.narrow(D::Minus1, self.counted.start, len)?)?,
        };
        let sums = Tensor::cat(&[of_query, of_key], D::Minus1)?;
        self.comm.all_reduce_in_place(&sums, Reduction::Sum)?;
        let normed = |index: usize, x: &Tensor| {
            let mean = (sums.narrow(D::Minus1, index, 1)? / self.widths[index] as f64)?;
            let y = x.to_dtype(DType::F32)?.broadcast_div(&(mean + self.eps)?.sqrt()?)?;
            y.to_dtype(x.dtype())?.broadcast_mul(&self.weights[index])
        };
        Ok([normed(0, query)?, normed(1, key)?])
    }
}
