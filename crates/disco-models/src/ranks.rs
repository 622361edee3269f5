//! What the ranks of a model exchange in a layer.
//!
//! ```text
//! hosts     own heads or hidden units ─▶ all_gather ─▶ own rows of the matrix, whole sums ─▶ all_gather
//! devices   own heads or hidden units ─▶ own columns of the matrix, parts of sums ─▶ all_reduce
//! ```
//!
//! On hosts, no sum is cut, so that its bits do not depend on the number of ranks.

use std::ops::Range;

use candle_core::{Module as _, Result, Tensor};
use disco_candle::{Comm, Matrix, even_ranges};
use disco_core::Reduction;

/// Rows of a matrix that products take together.
const ROWS: usize = 32;

/// Rows that stay on one rank, where there are as many for each.
pub(crate) fn unit_of(rows: usize, ranks: usize) -> usize {
    if rows.is_multiple_of(ROWS) && rows / ROWS >= ranks { ROWS } else { 1 }
}

/// The rows of each rank.
pub(crate) fn rows_of(rows: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let unit = unit_of(rows, ranks);
    even_ranges(rows / unit, ranks).map(move |own| own.start * unit..own.end * unit)
}

/// Elements of vectors of which each rank has some, in rank order.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    extents: Vec<usize>,
    comm: Comm,
}

impl Gather {
    pub(crate) fn new(extents: Vec<usize>, comm: &Comm) -> Self {
        Self { extents, comm: comm.clone() }
    }

    /// Of the outputs of a matrix of so many rows.
    pub(crate) fn of_rows(rows: usize, comm: &Comm) -> Self {
        Self::new(rows_of(rows, comm.size()).map(|own| own.len()).collect(), comm)
    }

    /// The elements of this rank.
    pub(crate) fn own(&self) -> Range<usize> {
        let start = self.extents[..self.comm.rank()].iter().sum();
        start..start + self.extents[self.comm.rank()]
    }

    /// `[.., own elements]` to `[.., elements]`.
    pub(crate) fn forward(&self, own: Tensor) -> Result<Tensor> {
        match self.extents.len() {
            1 => Ok(own),
            _ => self.comm.all_gather_uneven(&own, own.rank() - 1, &self.extents),
        }
    }
}

/// How what ranks have computed becomes the output of a layer.
#[derive(Clone, Debug)]
pub(crate) enum Join {
    /// Each has some elements.
    Gather(Gather),
    /// Each has a summand of all elements.
    Sum(Comm),
}

impl Join {
    /// The output, `[.., elements]`, on all ranks.
    pub(crate) fn forward(&self, own: Tensor) -> Result<Tensor> {
        match self {
            Self::Gather(gather) => gather.forward(own),
            Self::Sum(comm) => comm.all_reduce_in_place(&own, Reduction::Sum).map(|()| own),
        }
    }
}

/// The last matrix of heads.
#[derive(Debug)]
pub(crate) struct Output {
    /// On hosts.
    pub(crate) inputs: Option<Gather>,
    pub(crate) matrix: Matrix,
    /// Of all outputs.
    pub(crate) bias: Option<Tensor>,
    pub(crate) join: Join,
}

impl Output {
    /// `[.., own inputs]` to `[.., outputs]`, the same on all ranks.
    pub(crate) fn forward(&self, own: Tensor) -> Result<Tensor> {
        let x = self.inputs.iter().try_fold(own, |own, gather| gather.forward(own))?;
        let y = self.join.forward(self.matrix.forward(&x)?)?;
        self.bias.iter().try_fold(y, |y, bias| y.broadcast_add(bias))
    }
}
