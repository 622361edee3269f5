//! Attention of the query heads of one rank to keys and values.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};

/// The heads of one rank.
#[derive(Debug)]
pub(crate) struct Heads {
    /// For each kv head of this rank, the query heads that share it; both are numbered from the rank's first head.
    pub(crate) groups: Vec<Range<usize>>,
    pub(crate) head_dim: usize,
    pub(crate) softcap: Option<f64>,
    /// Of each head; a tensor for whole tensors, and numbers for blocks.
    pub(crate) sinks: Option<(Tensor, Vec<f32>)>,
}

impl Heads {
    /// The attention of each query head: `[sequences, heads, tokens, head_dim]`, as the queries. Keys and values are
    /// `[sequences, kv heads, slots, head_dim]`, and the mask is added to the scores.
    pub(crate) fn attend(
        &self,
        query: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let size = self.groups[0].len();
        if self.groups.iter().all(|group| group.len() == size) {
            return self.attend_equally(query, keys, values, mask, 0);
        }
        let groups = self.groups.iter().enumerate().map(|(kv, group)| {
            let query = query.narrow(1, group.start, group.len())?;
            self.attend_equally(&query, &keys.narrow(1, kv, 1)?, &values.narrow(1, kv, 1)?, mask, group.start)
        });
        Tensor::cat(&groups.collect::<Result<Vec<_>>>()?, 1)
    }

    /// Attention where each kv head belongs to the same number of query heads, the first of which is `first`.
    fn attend_equally(
        &self,
        query: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: Option<&Tensor>,
        first: usize,
    ) -> Result<Tensor> {
        let (sequences, heads, tokens, width) = query.dims4()?;
        let (_, kv_heads, slots, _) = keys.dims4()?;
        // The query heads of a kv head are rows of one matrix, so that keys and values are not repeated.
        let query = query.reshape((sequences, kv_heads, (), width))?;
        let mut scores = query.matmul(&keys.t()?)?.reshape((sequences, heads, tokens, slots))?;
        if let Some(cap) = self.softcap {
            scores = capped(&scores, cap)?;
        }
        if let Some(mask) = mask {
            scores = scores.broadcast_add(mask)?;
        }
        // Sums of exponentials need more than the precision of 16 bits.
        let scores = scores.to_dtype(DType::F32)?;
        let shares = match &self.sinks {
            None => candle_nn::ops::softmax_last_dim(&scores)?,
            Some((sinks, _)) => {
                let sinks = sinks.narrow(0, first, heads)?.reshape((1, heads, 1, 1))?;
                let sinks = sinks.broadcast_as((sequences, heads, tokens, 1))?.contiguous()?;
                let all = candle_nn::ops::softmax_last_dim(&Tensor::cat(&[scores, sinks], 3)?)?;
                all.narrow(3, 0, slots)?.contiguous()?
            }
        };
        let shares = shares.to_dtype(query.dtype())?;
        let shares = shares.reshape((sequences, kv_heads, (), slots))?;
        shares.matmul(values)?.reshape((sequences, heads, tokens, width))
    }
}

/// `x` between `cap` and its negative.
pub(crate) fn capped(x: &Tensor, cap: f64) -> Result<Tensor> {
    (x / cap)?.tanh()? * cap
}
