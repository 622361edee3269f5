//! Embedding and logits of a language model whose vocabulary is split over the ranks.

use std::ops::Range;

use candle_core::{DType, Device, IndexOp as _, Module, Result, Tensor};

use crate::comm::Comm;
use crate::linear::sum;
use crate::matrix::Matrix;

/// An embedding of which each rank has the rows of some tokens.
#[derive(Clone, Debug)]
pub struct VocabParallelEmbedding {
    weight: Tensor,
    tokens: Range<usize>,
    comm: Comm,
}

impl VocabParallelEmbedding {
    /// The embedding of the tokens `tokens`: `weight` is `[tokens.len(), features]`.
    ///
    /// # Errors
    /// `weight` has another number of rows.
    pub fn new(weight: Tensor, tokens: Range<usize>, comm: Comm) -> Result<Self> {
        if weight.dim(0)? != tokens.len() {
            let (shape, len) = (weight.shape(), tokens.len());
            return Err(candle_core::Error::Msg(format!("the embedding {shape:?} is for {len} tokens of this rank")));
        }
        Ok(Self { weight, tokens, comm })
    }
}

impl Module for VocabParallelEmbedding {
    /// Token numbers `[..]` of dtype u32, the same on all ranks, to `[.., features]`, the same on all ranks. A number
    /// outside of the vocabulary gives zeros.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        if self.comm.size() == 1 {
            return candle_nn::Embedding::new(self.weight.clone(), self.weight.dim(1)?).forward(tokens);
        }
        let (first, end) = (self.tokens.start as u32, self.tokens.end as u32);
        let mut dims = tokens.dims().to_vec();
        let tokens = tokens.flatten_all()?.to_vec1::<u32>()?;
        let is_own = |token: &u32| (first..end).contains(token);
        let own: Vec<u32> = tokens.iter().map(|token| if is_own(token) { token - first } else { 0 }).collect();
        let mask: Vec<f32> = tokens.iter().map(|token| f32::from(u8::from(is_own(token)))).collect();
        let device = self.weight.device();
        let features = self.weight.dim(1)?;
        dims.push(features);
        // A rank without tokens has no row that could stand for those of other ranks.
        let partial = match end > first {
            true => {
                let rows = self.weight.index_select(&Tensor::new(own, device)?, 0)?;
                rows.broadcast_mul(&Tensor::new(mask, device)?.unsqueeze(1)?.to_dtype(self.weight.dtype())?)?
            }
            false => Tensor::zeros((tokens.len(), features), self.weight.dtype(), device)?,
        };
        sum(&self.comm, partial)?.reshape(dims)
    }
}

/// The last layer of a language model, of which each rank has the logits of some tokens.
#[derive(Clone, Debug)]
pub struct VocabParallelLogits {
    matrix: Matrix,
    /// Number of tokens of each rank.
    extents: Vec<usize>,
    comm: Comm,
}

impl VocabParallelLogits {
    /// The layer of this rank's tokens: `matrix` is `[own tokens, features]`. Rank `r` has `extents[r]` tokens, in rank
    /// order.
    pub fn new(matrix: Matrix, extents: Vec<usize>, comm: Comm) -> Self {
        Self { matrix, extents, comm }
    }

    /// The logits of this rank's tokens: `[.., features]` to `[.., own tokens]`.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn own(&self, x: &Tensor) -> Result<Tensor> {
        self.matrix.forward(x)
    }

    /// The token with the largest logit of each row, the first one of equals, on all ranks: `[rows, features]` to
    /// `rows` token numbers. Ranks exchange 16 bytes a row instead of all logits.
    ///
    /// # Errors
    /// A logit is NaN or infinite, on all ranks; errors of candle and of the communicator.
    pub fn argmax(&self, x: &Tensor) -> Result<Vec<u32>> {
        let own = self.own(x)?.to_dtype(DType::F32)?;
        let rows = own.dim(0)?;
        let first: usize = self.extents[..self.comm.rank()].iter().sum();
        // Two f64 a row: the logit, and the number of the token, which f64 has exactly.
        let mut best = vec![[f64::NEG_INFINITY, f64::MAX]; rows];
        if own.dim(1)? > 0 {
            let indices = own.argmax(1)?.to_vec1::<u32>()?;
            let sums = own.sum(1)?.to_vec1::<f32>()?;
            for (row, ((best, index), sum)) in best.iter_mut().zip(indices).zip(sums).enumerate() {
                let logit = own.i((row, index as usize))?.to_scalar::<f32>()?;
                let logit = if sum.is_finite() { logit } else { f32::NAN };
                *best = [f64::from(logit), (first + index as usize) as f64];
            }
        }
        let best: Vec<f64> = best.into_iter().flatten().collect();
        let best = Tensor::from_vec(best, (1, rows, 2), &Device::Cpu)?.to_device(x.device())?;
        let all = self.comm.all_gather(&best, 0)?.to_vec3::<f64>()?;
        if all.iter().flatten().any(|best| best[0].is_nan()) {
            return Err(not_finite());
        }
        let larger = |row: usize| {
            let of_ranks = all.iter().map(|rank| &rank[row]);
            of_ranks.reduce(|best, next| if next[0] > best[0] { next } else { best }).map_or(0, |best| best[1] as u32)
        };
        Ok((0..rows).map(larger).collect())
    }
}

/// The error for logits of which no token can be chosen.
pub(crate) fn not_finite() -> candle_core::Error {
    candle_core::Error::Msg(
        "a logit of the model is NaN or infinite: its weights are damaged, or overflow their type".into(),
    )
}

impl Module for VocabParallelLogits {
    /// `[.., features]`, the same on all ranks, to the logits of all tokens `[.., tokens]` on all ranks.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = if x.track_op() { self.comm.copy_to_ranks(x)? } else { x.clone() };
        let own = self.own(&x)?;
        self.comm.gather_from_ranks(&own, own.rank() - 1, &self.extents)
    }
}
