//! RMS norms of queries and keys.

use std::ops::Range;

use candle_core::{D, DType, Error, Module as _, Result, Tensor};
use disco_candle::{Comm, HeadPlan, squares};
use disco_core::Reduction;

use crate::names::Role;
use crate::norm::Norm;
use crate::parts::Parts;
use crate::ranks::Gather;
use crate::{ModelError, QkNorm, Sums};

/// The norms of one rank's queries and keys in one layer.
#[derive(Debug)]
pub(crate) enum HeadNorms {
    /// Each head by itself, with the same weights: of queries, and of keys.
    Each(Norm, Option<Norm>),
    /// All heads of all ranks together: one collective for the squares.
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
    squares: Squares,
    eps: f64,
}

/// How ranks exchange the squares of heads.
#[derive(Debug)]
enum Squares {
    /// Those of each head, on hosts; how many each rank has of queries and of keys.
    Gather(Gather, Vec<[usize; 2]>),
    /// Those of all heads of a rank.
    Sum(Comm),
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
                // Those before `first` are of ranks before this one, too.
                let counted = |rank: usize| {
                    let own = heads.kv(rank);
                    let first = (0..rank).map(|rank| heads.kv(rank).end).max().unwrap_or(0).clamp(own.start, own.end);
                    first - own.start..own.len()
                };
                let own = counted(comm.rank());
                let squares = if parts.config.sums != Sums::Parts {
                    let of_rank = |rank| [heads.query(rank).len(), counted(rank).len()];
                    let counts: Vec<_> = (0..comm.size()).map(of_rank).collect();
                    Squares::Gather(Gather::new(counts.iter().map(|it| it.iter().sum()).collect(), comm), counts)
                } else {
                    Squares::Sum(comm.clone())
                };
                Ok(Some(Self::Joint(JointNorms {
                    weights: [parts.tensor(&names[0])?, parts.tensor(&names[1])?],
                    widths: [attention.heads, attention.kv_heads].map(|heads| heads * attention.head_dim),
                    counted: own.start * attention.head_dim..own.end * attention.head_dim,
                    squares,
                    eps: parts.config.eps,
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
                let [query, key] = joint.forward(&query, &key, head_dim)?;
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
    fn forward(&self, query: &Tensor, key: &Tensor, head_dim: usize) -> Result<[Tensor; 2]> {
        let sums = self.sums(query, &key.narrow(D::Minus1, self.counted.start, self.counted.len())?, head_dim)?;
        let normed = |index: usize, x: &Tensor| {
            let mean = (sums.narrow(D::Minus1, index, 1)? / self.widths[index] as f64)?;
            let y = x.to_dtype(DType::F32)?.broadcast_div(&(mean + self.eps)?.sqrt()?)?;
            y.to_dtype(x.dtype())?.broadcast_mul(&self.weights[index])
        };
        Ok([normed(0, query)?, normed(1, key)?])
    }

    /// The sums of the squares of all elements of query and key, f32 `[1, tokens, 2]`.
    #[expect(clippy::disallowed_methods, reason = "the squares are on the host")]
    fn sums(&self, query: &Tensor, key: &Tensor, head_dim: usize) -> Result<Tensor> {
        match &self.squares {
            Squares::Gather(gather, counts) => {
                let own = [squares(query, head_dim)?, squares(key, head_dim)?];
                let all = gather.forward(Tensor::cat(&own, D::Minus1)?)?.squeeze(0)?.to_vec2::<f32>()?;
                // In the order of heads.
                let sums = all.into_iter().flat_map(|heads| {
                    let (mut sums, mut heads) = ([0.0; 2], heads.into_iter());
                    for [of_query, of_key] in counts {
                        sums[0] = heads.by_ref().take(*of_query).fold(sums[0], |sum, head| sum + head);
                        sums[1] = heads.by_ref().take(*of_key).fold(sums[1], |sum, head| sum + head);
                    }
                    sums
                });
                Tensor::from_vec(sums.collect(), (1, query.dim(1)?, 2), query.device())
            }
            Squares::Sum(comm) => {
                let of_rank = |x: &Tensor| match x.elem_count() {
                    0 => Tensor::zeros((1, x.dim(1)?, 1), DType::F32, x.device()),
                    _ => x.to_dtype(DType::F32)?.sqr()?.sum_keepdim(D::Minus1),
                };
                let sums = Tensor::cat(&[of_rank(query)?, of_rank(key)?], D::Minus1)?;
                comm.all_reduce_in_place(&sums, Reduction::Sum)?;
                Ok(sums)
            }
        }
    }
}
