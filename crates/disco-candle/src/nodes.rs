//! A linear layer whose sums are cut between ranks without a change of their bits.

use std::ops::Range;

use candle_core::{D, Module, Result, Tensor};
use disco_core::{Op, Tensor as Memory};

use crate::comm::Comm;
use crate::error::to_candle;
use crate::floats::of_floats;
use crate::heads::even_ranges;
use crate::matrix::Matrix;
use crate::products::{Order, nodes, sum};

/// The most numbers of all nodes that every rank gets, in one exchange. Of more, each rank adds some, in two exchanges.
const DIRECT: usize = 1 << 14;

/// A linear layer without gradients of which each rank has some inputs: columns of the weights. All ranks get all outputs, with the bits
/// of [`Matrix::inference`] of the whole weights.
///
/// ```text
/// rank r  xᵣ·Wᵣᵀ, a sum for each complete node of the tree ──▶ all_gather ──▶ all ranks  x·Wᵀ     one round trip
/// ```
///
/// Ranks that only gather what [`Matrix::inference`] takes and gives exchange fewer bytes, in two round trips.
#[derive(Debug)]
pub struct NodesLinear {
    /// The columns of this rank's nodes among its own, and their weights.
    own: Vec<(Range<usize>, Matrix)>,
    /// The leaves of the nodes of each rank.
    leaves: Vec<Vec<Range<usize>>>,
    outputs: usize,
    comm: Comm,
}

impl NodesLinear {
    /// A layer of `inputs` inputs and `outputs` outputs. Rank `r` has the inputs `parts[r]`, which are cut at [`cuts`](crate::cuts).
    /// `load` returns the weights of ranges of columns, counted from this rank's first one.
    ///
    /// # Errors
    /// Weights that the host does not lay out anew; errors of `load`.
    pub fn new<E: From<candle_core::Error>>(
        [inputs, outputs]: [usize; 2],
        parts: &[Range<usize>],
        load: impl FnOnce(&[Range<usize>]) -> std::result::Result<Vec<Matrix>, E>,
        comm: &Comm,
    ) -> std::result::Result<Self, E> {
        let first = parts[comm.rank()].start;
        let own = nodes(inputs, &parts[comm.rank()]);
        let columns: Vec<_> = own.iter().map(|(_, columns)| columns.start - first..columns.end - first).collect();
        let matrices = load(&columns)?.into_iter().zip(own);
        let own = matrices
            .zip(columns)
            .map(|((matrix, (leaves, _)), columns)| Ok((columns, matrix.in_order(Order::of_node(inputs, leaves))?)));
        let leaves = |part| nodes(inputs, part).into_iter().map(|(leaves, _)| leaves).collect();
        let leaves = parts.iter().map(leaves).collect();
        Ok(Self { own: own.collect::<std::result::Result<_, E>>()?, leaves, outputs, comm: comm.clone() })
    }

    /// The sums of all ranks: `own` has `len` numbers of each of this rank's nodes.
    fn exchange(&self, own: Vec<f32>, len: usize) -> disco_core::Result<Vec<f32>> {
        let counts: Vec<_> = self.leaves.iter().map(Vec::len).collect();
        let all = counts.iter().sum::<usize>();
        if all * len <= DIRECT {
            return Ok(self.sum(&self.gathered(own, counts.iter().map(|count| count * len).collect())?, len));
        }
        // Each rank adds some of the numbers.
        let slices: Vec<_> = even_ranges(len, counts.len()).collect();
        let mine = slices[self.comm.rank()].len();
        let of_rank =
            |slice: &Range<usize>| own.chunks_exact(len).flat_map(|node| &node[slice.clone()]).copied().collect();
        let send = slices.iter().map(of_rank).collect::<Vec<Vec<f32>>>();
        let op = |src: &Memory, dst: &Memory| Op::AllToAllV {
            src: Some(src.clone()),
            send_counts: send.iter().map(Vec::len).collect(),
            dst: dst.clone(),
            recv_counts: counts.iter().map(|count| count * mine).collect(),
        };
        let received = self.run(send.concat(), all * mine, op)?;
        self.gathered(self.sum(&received, mine), slices.iter().map(Range::len).collect())
    }

    /// Adds numbers of all nodes, `len` of each.
    fn sum(&self, all: &[f32], len: usize) -> Vec<f32> {
        let leaves = self.leaves.iter().flatten().cloned();
        sum(&leaves.zip(all.chunks_exact(len.max(1))).collect::<Vec<_>>())
    }

    fn gathered(&self, own: Vec<f32>, counts: Vec<usize>) -> disco_core::Result<Vec<f32>> {
        let len = counts.iter().sum();
        let op = |src: &Memory, dst: &Memory| Op::AllGatherV {
            src: Some(src.clone()),
            dst: dst.clone(),
            counts: counts.into(),
        };
        self.run(own, len, op)
    }

    fn run(&self, src: Vec<f32>, len: usize, op: impl FnOnce(&Memory, &Memory) -> Op) -> disco_core::Result<Vec<f32>> {
        let count = src.len();
        let (src, dst) = (Memory::from_vec(src, count)?, Memory::from_vec(vec![0f32; len], len)?);
        self.comm.enqueue(op(&src, &dst))?;
        dst.into_vec().or_else(|kept| kept.to_vec())
    }
}

impl Module for NodesLinear {
    /// `[.., own inputs]` to `[.., outputs]`, the same on all ranks.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut dims = x.dims().to_vec();
        dims.pop();
        let len = dims.iter().product::<usize>() * self.outputs;
        let mut own = Vec::with_capacity(self.own.len() * len);
        for (columns, matrix) in &self.own {
            own.extend(matrix.sums(&x.narrow(D::Minus1, columns.start, columns.len())?)?);
        }
        dims.push(self.outputs);
        of_floats(self.exchange(own, len).map_err(to_candle)?, &dims.into(), x.dtype())
    }
}
