//! Embedding and logits of a language model whose vocabulary is split over the ranks.

use std::ops::Range;

use candle_core::{DType, Error, Module, Result, Tensor};

use crate::comm::Comm;
use crate::linear::sum;
use crate::matrix::Matrix;

/// An embedding of which each rank has the rows of some tokens.
#[derive(Clone, Debug)]
pub struct VocabParallelEmbedding {
    weight: Matrix,
    /// The first of this rank's tokens, and the first one after them: numbers `[1]` on the device.
    bounds: [Tensor; 2],
    tokens: Range<usize>,
    comm: Comm,
}

impl VocabParallelEmbedding {
    /// The embedding of the tokens `tokens`: `weight` is `[tokens.len(), features]`.
    ///
    /// # Errors
    /// `weight` has another number of rows.
    pub fn new(weight: Matrix, tokens: Range<usize>, comm: Comm) -> Result<Self> {
        let (rows, len) = (weight.outputs()?, tokens.len());
        if rows != len {
            return Err(Error::Msg(format!("the embedding has {rows} rows for {len} tokens of this rank")));
        }
        let bound = |number: usize| Tensor::new(&[number as i64], &weight.device());
        Ok(Self { bounds: [bound(tokens.start)?, bound(tokens.end)?], weight, tokens, comm })
    }

    /// The rows of this rank's tokens, and zeros for all others: `[count, features]`.
    fn own(&self, tokens: &Tensor) -> Result<Tensor> {
        if self.tokens.is_empty() {
            let shape = (tokens.dim(0)?, self.weight.inputs()?);
            return Tensor::zeros(shape, self.weight.dtype(), &self.weight.device());
        }
        let [first, end] = &self.bounds;
        let is_own = (tokens.broadcast_ge(first)? * tokens.broadcast_lt(end)?)?;
        // Row 0 stands for the tokens of other ranks.
        let rows = self.weight.rows(&(tokens.broadcast_sub(first)? * is_own.to_dtype(DType::I64)?)?)?;
        rows.broadcast_mul(&is_own.to_dtype(rows.dtype())?.unsqueeze(1)?)
    }
}

impl Module for VocabParallelEmbedding {
    /// Token numbers `[..]` of dtype u32, the same on all ranks, to `[.., features]`, the same on all ranks. A number
    /// outside of the vocabulary gives zeros. The numbers stay on the device.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut dims = tokens.dims().to_vec();
        dims.push(self.weight.inputs()?);
        let tokens = tokens.flatten_all()?;
        let rows = match self.comm.size() {
            1 => self.weight.rows(&tokens)?,
            _ => sum(&self.comm, self.own(&tokens.to_dtype(DType::I64)?)?)?,
        };
        // A sum of ranks may have -0.0 or 0.0.
        (if rows.device().is_cpu() { (rows + 0.0)? } else { rows }).reshape(dims)
    }
}

/// The last layer of a language model, of which each rank has the logits of some tokens.
#[derive(Clone, Debug)]
pub struct VocabParallelLogits {
    matrix: Matrix,
    /// Number of tokens of each rank.
    extents: Vec<usize>,
    /// 0, 1, … for this rank's tokens, u32 `[1, own tokens]` on the device.
    numbers: Tensor,
    comm: Comm,
}

impl VocabParallelLogits {
    /// The layer of this rank's tokens: `matrix` is `[own tokens, features]`. Rank `r` has `extents[r]` tokens, in rank
    /// order.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn new(matrix: Matrix, extents: Vec<usize>, comm: Comm) -> Result<Self> {
        let numbers = Tensor::arange(0, extents[comm.rank()] as u32, &matrix.device())?.unsqueeze(0)?;
        Ok(Self { matrix, extents, numbers, comm })
    }

    /// The logits of this rank's tokens: `[.., features]` to `[.., own tokens]`.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn own(&self, x: &Tensor) -> Result<Tensor> {
        self.matrix.forward(x)
    }

    /// The token with the largest logit of each row, the first one of equals, on all ranks: `[rows, features]` to `rows`
    /// tokens, which stay on the device. Ranks exchange 24 bytes a row instead of all logits.
    ///
    /// # Errors
    /// Errors of candle and of the communicator.
    pub fn argmax(&self, x: &Tensor) -> Result<Argmax> {
        let own = self.own(x)?.to_dtype(DType::F32)?;
        let all = self.comm.all_gather(&self.best_of(&own)?.unsqueeze(0)?, 0)?;
        let column = |index| all.narrow(1, index, 1)?.squeeze(1)?.contiguous();
        let best = column(0)?.argmax_keepdim(0)?;
        Ok(Argmax(Tensor::cat(&[column(1)?.gather(&best, 0)?, column(2)?.sum_keepdim(0)?], 0)?))
    }

    /// The largest of this rank's logits `[rows, own tokens]`: f64 `[3, rows]`, the logits, the numbers of their tokens,
    /// which f64 has exactly, and the sums of all logits, which are finite if all logits are.
    fn best_of(&self, own: &Tensor) -> Result<Tensor> {
        let (rows, tokens) = own.dims2()?;
        let zeros = Tensor::zeros((1, rows), DType::F64, own.device())?;
        if tokens == 0 {
            return Tensor::cat(&[&zeros.affine(1.0, f64::NEG_INFINITY)?, &zeros, &zeros], 0);
        }
        let row = |values: Tensor| values.to_dtype(DType::F64)?.reshape((1, rows));
        let largest = own.max_keepdim(1)?;
        // On a device, candle's `argmax` returns any one of equals. The last number stands for all others, so that it is one of
        // a token in any case.
        let last = self.numbers.narrow(1, tokens - 1, 1)?.broadcast_as(own.shape())?;
        let numbers = own.broadcast_eq(&largest)?.where_cond(&self.numbers.broadcast_as(own.shape())?, &last)?;
        let first: usize = self.extents[..self.comm.rank()].iter().sum();
        let numbers = (row(numbers.min(1)?)? + first as f64)?;
        Tensor::cat(&[&row(largest)?, &numbers, &row(own.sum(1)?)?], 0)
    }
}

/// The tokens with the largest logits, on the device: see [`VocabParallelLogits::argmax`].
#[derive(Clone, Debug)]
pub struct Argmax(Tensor);

impl Argmax {
    /// The numbers of the tokens, u32 `[rows]`, on the device.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn tokens(&self) -> Result<Tensor> {
        self.0.narrow(0, 0, 1)?.squeeze(0)?.to_dtype(DType::U32)
    }

    /// The numbers of the tokens. Waits for the device, without a deadline: [`Comm::synchronize`] has one.
    ///
    /// # Errors
    /// A logit is NaN or infinite, on all ranks; errors of candle.
    #[expect(clippy::disallowed_methods, reason = "the caller asks for the numbers")]
    pub fn to_vec(&self) -> Result<Vec<u32>> {
        Self::checked(&self.0.flatten_all()?.to_vec1()?)
    }

    /// The numbers of the tokens, and the sums of all logits: f64 `[2, rows]`, on the device.
    pub fn values(&self) -> &Tensor {
        &self.0
    }

    /// The numbers of the tokens, from a copy of all [`values`](Self::values).
    ///
    /// # Errors
    /// A logit is NaN or infinite.
    pub fn checked(values: &[f64]) -> Result<Vec<u32>> {
        let (numbers, sums) = values.split_at(values.len() / 2);
        if sums.iter().all(|sum| sum.is_finite()) {
            Ok(numbers.iter().map(|number| *number as u32).collect())
        } else {
            Err(not_finite())
        }
    }
}

/// The error for logits of which no token can be chosen.
pub fn not_finite() -> candle_core::Error {
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
