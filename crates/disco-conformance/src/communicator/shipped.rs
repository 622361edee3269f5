//! The reductions that Disco registers, compared with plain loops over the inputs of all ranks.

use std::fmt;

use disco_core::reductions::{ARGMAX, LOGSUMEXP, TOP_K};
use disco_core::{DType, Error, Op, OpKind, Reduction, Result};

use super::fixture::Fixture;
use super::part::{Part, Want};
use super::verdict::{Tally, Verdict};
use crate::oracle::{Expected, bits, encode};

/// Rows of a tensor: a small message, and several staging pieces of `local`.
const ROWS: [usize; 2] = [3, 30_011];
/// Values in a row of [`TOP_K`].
const K: usize = 3;

/// A reduction on one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shipped {
    reduction: Reduction,
    dtype: DType,
}

impl Shipped {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let dtypes = [DType::F32, DType::F64];
        [ARGMAX, LOGSUMEXP, TOP_K].into_iter().flat_map(move |reduction| dtypes.map(|dtype| Self { reduction, dtype }))
    }

    /// All-reduces tensors on this rank.
    ///
    /// # Errors
    /// Errors of the communicator.
    pub(crate) fn run(self, fixture: &mut Fixture<'_>) -> Result<Verdict> {
        let Self { reduction, dtype } = self;
        let (me, size) = fixture.rank_and_size()?;
        let is_there = fixture.comm()?.capabilities().supports(OpKind::AllReduce, dtype, Some(reduction));
        let mut tally = Tally::default();
        for rows in ROWS {
            let inputs: Vec<Vec<Vec<f64>>> = (0..rows).map(|row| self.inputs(row, size)).collect();
            let mine = inputs.iter().flat_map(|inputs| &inputs[me]);
            let bytes = mine.flat_map(|x| encode(dtype, *x).to_le_bytes()[..dtype.size()].to_vec()).collect();
            let expected = inputs.iter().flat_map(|inputs| self.expected(inputs)).collect();
            let buffer = fixture.buffer(dtype, bytes, 1)?.in_rows(self.row())?;
            let op = Op::AllReduce { src: None, dst: buffer.tensor().clone(), reduction };
            let part = Part::new(op, [("dst", buffer, Want::Numbers(Expected::Floats(expected)))]);
            match fixture.enqueue(&part.ops) {
                Err(error @ Error::Unsupported { .. }) if !is_there => return Ok(Verdict::Skipped(error.to_string())),
                ended => ended?,
            }
            if !is_there {
                return Ok(Verdict::Wrong(format!("{self} ran, although the capabilities lack it")));
            }
            let seen = part.inspect(fixture.ctx, dtype)?;
            let at = |wrong| format!("{rows} rows, rank {me} of {size}: {wrong}");
            tally.count(seen.wrong.map(at), &seen.result);
        }
        Ok(tally.verdict(fixture.color))
    }

    fn row(self) -> usize {
        match self.reduction {
            ARGMAX => 2,
            TOP_K => 2 * K,
            _ => 4,
        }
    }

    /// Row `row` of each rank. Many values are equal, and some rows are empty.
    fn inputs(self, row: usize, size: usize) -> Vec<Vec<f64>> {
        let mut next = bits(row as u64 + 1);
        let mut number = move || (next() >> 40 & 15) as f64 / 4.0 - 2.0;
        let input = |rank: usize| {
            let is_empty = (rank + row) % 5 == 4;
            match self.reduction {
                LOGSUMEXP if is_empty => vec![f64::NAN, f64::NAN, f64::NAN, f64::NEG_INFINITY],
                LOGSUMEXP => vec![number(), number(), number(), 4.0 * number()],
                _ => {
                    let count = self.row() / 2;
                    let mut values: Vec<f64> = (0..count).map(|_| number()).collect();
                    values.sort_by(|a, b| b.total_cmp(a));
                    let mut indices: Vec<f64> = (0..count).map(|at| (rank * count + at) as f64).collect();
                    if is_empty {
                        (values[count - 1], indices[count - 1]) = (f64::NEG_INFINITY, -1.0);
                    }
                    [values, indices].concat()
                }
            }
        };
        (0..size).map(input).collect()
    }

    /// The elements of the merged row, each with its tolerance.
    fn expected(self, inputs: &[Vec<f64>]) -> Vec<(f64, f64)> {
        if self.reduction == LOGSUMEXP {
            let tolerance = if self.dtype == DType::F32 { 1e-5 } else { 1e-13 };
            let full: Vec<_> = inputs.iter().filter(|row| row[3] > f64::NEG_INFINITY).collect();
            // One empty row of one rank stays as it is.
            let Some(_) = full.first() else { return inputs[0].iter().map(|x| (*x, 0.0)).collect() };
            let sum: f64 = full.iter().map(|row| row[3].exp()).sum();
            let average = |at: usize| full.iter().map(|row| row[3].exp() * row[at]).sum::<f64>() / sum;
            return [average(0), average(1), average(2), sum.ln()].map(|x| (x, tolerance)).to_vec();
        }
        let count = self.row() / 2;
        let pairs = inputs.iter().flat_map(|row| (0..count).map(|at| (row[at], row[count + at])));
        let mut pairs: Vec<(f64, f64)> = pairs.filter(|(_, index)| *index >= 0.0).collect();
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.total_cmp(&b.1)));
        pairs.resize(pairs.len().max(count), (f64::NEG_INFINITY, -1.0));
        let (values, indices): (Vec<_>, Vec<_>) = pairs[..count].iter().copied().unzip();
        [values, indices].concat().into_iter().map(|x| (x, 0.0)).collect()
    }
}

/// Like `reductions::disco.argmax::f32`.
impl fmt::Display for Shipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reductions::{}::{}", self.reduction, self.dtype)
    }
}
