//! The collectives of a layer.
//!
//! ```text
//! Whole   own heads or hidden units ─▶ all_gather ─▶ own rows of the matrix ─▶ all_gather
//! Nodes   own heads or hidden units ─▶ own columns of the matrix, nodes of sums ─▶ all_gather
//! Parts   own heads or hidden units ─▶ own columns of the matrix, parts of sums ─▶ all_reduce
//! ```
//!
//! The first two give the same bits with any number of ranks.

use std::ops::Range;

use candle_core::{Module as _, Result, Tensor};
use disco_candle::{Comm, HeadPlan, Matrix, NodesLinear, cuts, even_ranges};
use disco_core::{DeviceKind, Reduction};

use crate::{Attention, FeedForward, Sums};

/// Rows of a matrix that products take together.
const ROWS: usize = 32;

/// The inputs of a matrix are whole blocks of what products quantise.
const COLUMNS: usize = 64;

/// How much larger the largest part of nodes may be than an even one: 5 / 4.
const MOST: [usize; 2] = [5, 4];

/// Rows that stay on one rank, where there are as many for each.
pub(crate) fn unit_of(rows: usize, ranks: usize) -> usize {
    if rows.is_multiple_of(ROWS) && rows / ROWS >= ranks { ROWS } else { 1 }
}

/// The rows of each rank.
pub(crate) fn rows_of(rows: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let unit = unit_of(rows, ranks);
    even_ranges(rows / unit, ranks).map(move |own| own.start * unit..own.end * unit)
}

impl Sums {
    /// The way for workers on devices of one kind, on so many nodes.
    pub fn on(kind: DeviceKind, nodes: usize) -> Self {
        match kind {
            DeviceKind::Cpu if nodes > 1 => Self::Nodes,
            DeviceKind::Cpu => Self::Whole,
            _ => Self::Parts,
        }
    }

    /// The inputs of each rank, whole `unit`s, if these can be cut between nodes of sums.
    pub(crate) fn nodes(self, inputs: usize, unit: usize, ranks: usize) -> Option<Vec<Range<usize>>> {
        if self != Self::Nodes || !inputs.is_multiple_of(COLUMNS) || ranks == 1 {
            return None;
        }
        let cuts: Vec<_> = cuts(inputs).filter(|cut| cut.is_multiple_of(unit)).collect();
        let bound = |rank: usize| cuts.iter().copied().min_by_key(|cut| (cut * ranks).abs_diff(rank * inputs));
        let parts = (0..ranks).map(|rank| Some(bound(rank)?..bound(rank + 1)?)).collect::<Option<Vec<_>>>()?;
        let is_even = |part: &Range<usize>| !part.is_empty() && part.len() * ranks * MOST[1] <= inputs * MOST[0];
        parts.iter().all(is_even).then_some(parts)
    }

    /// The heads of each rank.
    ///
    /// # Errors
    /// Those of [`HeadPlan::new`].
    pub(crate) fn heads(self, attention: &Attention, ranks: usize) -> Result<HeadPlan> {
        let &Attention { heads, kv_heads, .. } = attention;
        let width = attention.value_dim();
        match self.nodes(heads * width, width, ranks) {
            Some(parts) => {
                let query = parts.into_iter().map(|part| part.start / width..part.end / width);
                HeadPlan::of_ranges(heads, kv_heads, query.collect())
            }
            None => HeadPlan::new(heads, kv_heads, ranks),
        }
    }

    /// The way for the units of a network beside its experts. Shared units are added to outputs of experts before these are gathered.
    pub(crate) fn of_units(self, network: &FeedForward) -> Self {
        match (self, network) {
            (Self::Nodes, FeedForward::Shared { .. }) => Self::Whole,
            _ => self,
        }
    }

    /// The hidden units of each rank, on hosts.
    pub(crate) fn units(self, count: usize, ranks: usize) -> Vec<Range<usize>> {
        self.nodes(count, 1, ranks).unwrap_or_else(|| rows_of(count, ranks).collect())
    }
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

/// The collective that makes the output of a layer.
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

/// A matrix behind heads or hidden units.
#[derive(Debug)]
pub(crate) struct Last {
    /// Gathers the inputs, if the sums are whole.
    pub(crate) inputs: Option<Gather>,
    pub(crate) matrix: Matrix,
}

impl Last {
    /// This rank's elements of the output, or its summand: `[.., own inputs]` to `[.., own outputs]` or `[.., outputs]`.
    pub(crate) fn part(&self, own: Tensor) -> Result<Tensor> {
        self.matrix.forward(&self.inputs.iter().try_fold(own, |own, gather| gather.forward(own))?)
    }
}

/// A matrix behind heads or hidden units, and the collective behind it.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) kind: OutputKind,
    /// Of all outputs.
    pub(crate) bias: Option<Tensor>,
}

#[derive(Debug)]
pub(crate) enum OutputKind {
    Joined(Last, Join),
    Nodes(NodesLinear),
}

impl Output {
    /// `[.., own inputs]` to `[.., outputs]`, the same on all ranks.
    pub(crate) fn forward(&self, own: Tensor) -> Result<Tensor> {
        let y = match &self.kind {
            OutputKind::Joined(last, join) => join.forward(last.part(own)?)?,
            OutputKind::Nodes(linear) => linear.forward(&own)?,
        };
        self.bias.iter().try_fold(y, |y, bias| y.broadcast_add(bias))
    }
}
