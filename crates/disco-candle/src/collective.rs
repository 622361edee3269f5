//! Collectives on flat storage, as operations of candle.
//!
//! A *flat* collective sees its tensor as a row of elements, in which the part of each rank is one range.
//! [`dimension`](crate::dimension) arranges tensors so that this holds for parts along any dimension.

use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, InplaceOp1, Layout, Result, Shape, Tensor};
use disco_core::{Op, Rank, Reduction};

use crate::comm::Comm;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error::to_candle;
use crate::lend;

/// A collective on flat storage. `parts[r]` is the number of elements of rank `r`'s part.
#[derive(Clone, Debug)]
pub(crate) enum Collective {
    /// No communication: the argument.
    Identity,
    /// No communication: this rank's part of the argument.
    OwnPart(Arc<[usize]>),
    /// The reduction of all ranks' elements.
    AllReduce(Reduction),
    /// The root's elements.
    Broadcast(Rank),
    /// All ranks' parts in rank order.
    AllGather(Arc<[usize]>),
    /// This rank's part of the sum of all ranks' elements.
    ReduceScatter(Arc<[usize]>),
    /// Part `s` of the result is this rank's part of rank `s`'s argument; all parts are equal.
    AllToAll,
}

/// How a collective uses memory. The output storage has `len` elements: the elements `input` of the argument at
/// position `at`. The operation runs on it in place. Its elements `kept` are the result.
struct Arrangement {
    input: Range<usize>,
    len: usize,
    at: usize,
    kept: Range<usize>,
}

impl Collective {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::OwnPart(_) => "own_part",
            Self::AllReduce(_) => "all_reduce",
            Self::Broadcast(_) => "broadcast",
            Self::AllGather(_) => "all_gather",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::AllToAll => "all_to_all",
        }
    }

    /// The arrangement for rank `rank`, whose argument has `n` elements.
    fn arrangement(&self, rank: usize, n: usize) -> Arrangement {
        match self {
            Self::Identity | Self::AllReduce(_) | Self::Broadcast(_) | Self::AllToAll => {
                Arrangement { input: 0..n, len: n, at: 0, kept: 0..n }
            }
            Self::OwnPart(parts) => {
                let input = part(parts, rank);
                let len = input.len();
                Arrangement { input, len, at: 0, kept: 0..len }
            }
            Self::AllGather(parts) => {
                let len = parts.iter().sum();
                Arrangement { input: 0..n, len, at: part(parts, rank).start, kept: 0..len }
            }
            Self::ReduceScatter(parts) => {
                let kept = if is_even(parts) { 0..parts[rank] } else { part(parts, rank) };
                Arrangement { input: 0..n, len: n, at: 0, kept }
            }
        }
    }

    /// The operation in place on `dst`.
    fn op(&self, dst: disco_core::Tensor) -> Option<Op> {
        let src = None;
        Some(match self {
            Self::Identity | Self::OwnPart(_) => return None,
            &Self::AllReduce(reduction) => Op::AllReduce { src, dst, reduction },
            &Self::Broadcast(root) => Op::Broadcast { src, dst, root },
            Self::AllGather(parts) if is_even(parts) => Op::AllGather { src, dst },
            Self::AllGather(parts) => Op::AllGatherV { src, dst, counts: parts.clone() },
            Self::ReduceScatter(parts) if is_even(parts) => Op::ReduceScatter { src, dst, reduction: Reduction::Sum },
            // Backends have no reduce_scatter of uneven parts.
            Self::ReduceScatter(_) => Op::AllReduce { src, dst, reduction: Reduction::Sum },
            Self::AllToAll => Op::AllToAll { src, dst },
        })
    }

    /// Runs the collective in place on the elements of `tensor`, which is contiguous.
    pub(crate) fn run_in_place(self, comm: &Comm, tensor: &Tensor) -> Result<()> {
        tensor.inplace_op1(&WithGradient { comm: comm.clone(), forward: self, backward: None })
    }
}

fn is_even(parts: &[usize]) -> bool {
    parts.iter().all(|part| *part == parts[0])
}

/// The range of rank `rank`'s part.
pub(crate) fn part(parts: &[usize], rank: usize) -> Range<usize> {
    let start = parts[..rank].iter().sum();
    start..start + parts[rank]
}

/// The elements of a contiguous tensor in its storage.
///
/// # Errors
/// The tensor is not contiguous; `operation` is named.
pub(crate) fn contiguous_range(operation: &str, layout: &Layout) -> Result<Range<usize>> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let refused = || format!("{operation}: the tensor is not contiguous; call `contiguous` first");
    range.ok_or_else(|| candle_core::Error::Msg(refused()))
}

/// A collective, and the collective that makes the gradient of its argument from the gradient of its result.
#[derive(Clone, Debug)]
pub(crate) struct WithGradient {
    pub(crate) comm: Comm,
    pub(crate) forward: Collective,
    /// None: the operation has no gradient.
    pub(crate) backward: Option<Collective>,
}

impl WithGradient {
    /// The result for `argument`, which is copied once.
    pub(crate) fn apply(self, argument: &Tensor) -> Result<Tensor> {
        argument.contiguous()?.apply_op1(self)
    }

    fn range(&self, layout: &Layout) -> Result<Range<usize>> {
        contiguous_range(self.forward.name(), layout)
    }

    fn run(&self, storage: &mut CpuStorage, range: Range<usize>) -> Result<()> {
        let run = |dst: &disco_core::Tensor| self.forward.op(dst.clone()).map_or(Ok(()), |op| self.comm.enqueue(op));
        lend::lend_storage(storage, range, run).map_err(to_candle)
    }

    #[cfg(feature = "cuda")]
    fn run_on_cuda(&self, storage: &mut CudaStorage, range: Range<usize>) -> Result<()> {
        if matches!(self.forward, Collective::Identity | Collective::OwnPart(_)) {
            return Ok(());
        }
        let run = |dst: &disco_core::Tensor| self.forward.op(dst.clone()).map_or(Ok(()), |op| self.comm.enqueue(op));
        match self.comm.stream().map_err(to_candle)? {
            Some(stream) => cuda::lend_storage(&stream, storage, range, run).map_err(to_candle),
            None => Ok(()),
        }
    }
}

impl CustomOp1 for WithGradient {
    fn name(&self) -> &'static str {
        self.forward.name()
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let range = self.range(layout)?;
        let Arrangement { input, len, at, kept } = self.forward.arrangement(self.comm.rank(), range.len());
        let input = range.start + input.start..range.start + input.end;
        let mut output = lend::arranged(storage, input, len, at).map_err(to_candle)?;
        self.run(&mut output, 0..len)?;
        let shape = Shape::from(kept.len());
        let shape = if kept.len() == range.len() { layout.shape().clone() } else { shape };
        if kept.start > 0 {
            output = lend::arranged(&output, kept.clone(), kept.len(), 0).map_err(to_candle)?;
        }
        lend::truncate(&mut output, kept.len()).map_err(to_candle)?;
        Ok((output, shape))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let range = self.range(layout)?;
        let Arrangement { input, len, at, kept } = self.forward.arrangement(self.comm.rank(), range.len());
        let input = range.start + input.start..range.start + input.end;
        let mut output = cuda::arranged(storage, input, len, at).map_err(to_candle)?;
        self.run_on_cuda(&mut output, 0..len)?;
        if kept.len() < len {
            output = cuda::arranged(&output, kept.clone(), kept.len(), 0).map_err(to_candle)?;
        }
        let is_whole = kept.len() == range.len();
        Ok((output, if is_whole { layout.shape().clone() } else { Shape::from(kept.len()) }))
    }

    fn bwd(&self, argument: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let Some(backward) = self.backward.clone() else {
            return Err(candle_core::Error::BackwardNotSupported { op: self.forward.name() });
        };
        let backward = Self { comm: self.comm.clone(), forward: backward, backward: None };
        backward.apply(gradient)?.reshape(argument.shape()).map(Some)
    }
}

impl InplaceOp1 for WithGradient {
    fn name(&self) -> &'static str {
        self.forward.name()
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let range = self.range(layout)?;
        self.run(storage, range)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let range = self.range(layout)?;
        self.run_on_cuda(storage, range)
    }
}
