//! Reductions of programs as steps of other collectives, for backends that can't call the function where the data is.
//!
//! ```text
//! first           all_gather of a digest of the call: ranks that call different reductions get an error
//! small tensors   all_gather or gather; each rank that gets the result merges all blocks
//! large tensors   all_to_all_v of shares: each rank gets its share of the rows of all ranks, and merges it; then
//!                 all_reduce: all_gather_v of the merged shares; reduce: all_to_all_v of them to the root
//! reduce_scatter  all_to_all of blocks; each rank merges its own
//! ```
//!
//! Blocks are merged in rank order. Each share is merged by one rank, and each block of a small tensor by a function
//! of the same elements, so all ranks get the same bits.

use std::ops::Range;
use std::sync::Arc;

use super::{Merge, Op, Reduction};
use crate::codec::fnv1a;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::tensor::Tensor;

/// The most bytes of all ranks' tensors that each rank gathers and merges: fewer steps cost less than the work that
/// all ranks repeat.
const MAX_GATHERED_BYTES: usize = 32 << 10;

/// One rank's communicator, as [`run_in_steps`] uses it. The default methods are for tensors on the host that are
/// complete when `run_step` returns.
pub trait Steps {
    /// Runs one collective without a reduction of a program.
    ///
    /// # Errors
    /// Errors of the communicator.
    fn run_step(&mut self, op: Op) -> Result<()>;

    /// A contiguous tensor of the shape `[elements]` on the device of the communicator.
    ///
    /// # Errors
    /// There is no memory.
    fn scratch(&mut self, dtype: DType, elements: usize) -> Result<Tensor> {
        Tensor::zeros(dtype, [elements])
    }

    /// Gathers `mine` of each of the `size` ranks, in rank order; all have the same length.
    ///
    /// # Errors
    /// As [`Steps::run_step`].
    fn gather(&mut self, mine: &[u8], size: usize) -> Result<Vec<u8>> {
        let (src, dst) = (Tensor::from_slice(mine, [mine.len()])?, self.scratch(DType::U8, mine.len() * size)?);
        self.run_step(Op::AllGather { src: Some(src), dst: dst.clone() })?;
        dst.to_vec()
    }

    /// Calls `merge` on a copy of the bytes of `blocks`, or on the bytes themselves, and then overwrites `result` with
    /// the first of them. Waits for earlier operations.
    ///
    /// # Errors
    /// Errors of `merge`, and of the copies.
    fn merge(
        &mut self,
        blocks: &Tensor,
        result: &Tensor,
        merge: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        merge(&mut blocks.bytes_mut()?)?;
        result.copy_from(&blocks.window(0, result.shape().clone())?)
    }
}

/// Whether an operation of the group has a [`Reduction::Custom`].
#[inline]
pub fn has_custom(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op.reduction(), Some(Reduction::Custom(_))))
}

/// Runs the collectives of a group on rank `rank` of `size`, in their order: those with a [`Reduction::Custom`] as
/// steps of other collectives, all others as they are. [`check_ops`](super::check_ops) has accepted the group.
///
/// # Errors
/// [`Error::Mismatch`] if ranks call different reductions; errors of the steps, which then have the name of the operation and
/// of the step; [`Error::Panicked`]. The caller breaks the communicator, since other ranks may be inside a later step.
pub fn run_in_steps(steps: &mut dyn Steps, rank: Rank, size: usize, ops: &[Op]) -> Result<()> {
    for op in ops {
        match Merge::of(op)? {
            None => steps.run_step(op.clone())?,
            Some(merge) => Composed { steps, op, merge, me: rank.index(), size, has_begun: false }.run()?,
        }
    }
    Ok(())
}

/// One operation, on one rank.
struct Composed<'a> {
    steps: &'a mut dyn Steps,
    op: &'a Op,
    merge: Merge<'a>,
    me: usize,
    size: usize,
    /// Whether a step has ended.
    has_begun: bool,
}

impl Composed<'_> {
    fn run(&mut self) -> Result<()> {
        self.compare()?;
        let (input, output) = (self.op.src().or(self.op.dst()).cloned(), self.op.dst().cloned());
        match (self.op, input, output) {
            (Op::ReduceScatter { .. }, Some(input), Some(output)) => {
                let all = self.scratch(input.elements())?;
                self.enqueue(Op::AllToAll { src: Some(input), dst: all.clone() })?;
                self.merge(&all, &output.window(0, [self.op.count(self.size)])?)
            }
            (Op::AllReduce { .. }, Some(input), Some(output)) if self.is_small(&input) => {
                let all = self.scratch(input.elements() * self.size)?;
                self.enqueue(Op::AllGather { src: Some(input), dst: all.clone() })?;
                self.merge(&all, &flat(&output)?)
            }
            (Op::Reduce { root, .. }, Some(input), output) if self.is_small(&input) => {
                let output = output.filter(|_| self.me == root.index());
                let all = output.as_ref().map(|_| self.scratch(input.elements() * self.size)).transpose()?;
                self.enqueue(Op::Gather { src: Some(input), dst: all.clone(), root: *root })?;
                all.zip(output).map_or(Ok(()), |(all, output)| self.merge(&all, &flat(&output)?))
            }
            (Op::AllReduce { .. }, Some(input), Some(output)) => {
                let counts: Arc<[usize]> = (0..self.size).map(|rank| self.share(&input, rank).len()).collect();
                let mine = self.share(&input, self.me);
                self.merge_share(input, &output.window(mine.start, [mine.len()])?)?;
                self.enqueue(Op::AllGatherV { src: None, dst: output, counts })
            }
            (Op::Reduce { root, .. }, Some(input), output) => {
                let mine = self.share(&input, self.me);
                let merged = self.scratch(mine.len())?;
                let (mut send_counts, mut recv_counts) = (vec![0; self.size], vec![0; self.size]);
                send_counts[root.index()] = mine.len();
                let output = output.filter(|_| self.me == root.index());
                if output.is_some() {
                    recv_counts = (0..self.size).map(|rank| self.share(&input, rank).len()).collect();
                }
                self.merge_share(input, &merged)?;
                let dst = output.map_or_else(|| self.scratch(0), Ok)?;
                let (send_counts, recv_counts) = (send_counts.into(), recv_counts.into());
                self.enqueue(Op::AllToAllV { src: Some(merged), send_counts, dst, recv_counts })
            }
            _ => Err(Error::invalid(format!("{} has no reduction", self.op.kind()))),
        }
    }

    /// Compares the calls of all ranks: what they merge, and how many rows of which size.
    fn compare(&mut self) -> Result<()> {
        const TEXT_BYTES: usize = 256;
        let call = self.op.signature(self.size);
        let digest = fnv1a(call.as_bytes()).to_ne_bytes();
        let all = self.gather(&digest)?;
        if all.as_chunks().0.iter().all(|theirs: &[u8; 8]| *theirs == digest) {
            return Ok(());
        }
        let mut text = [b' '; TEXT_BYTES];
        let bytes = &call.as_bytes()[..call.floor_char_boundary(TEXT_BYTES)];
        text[..bytes.len()].copy_from_slice(bytes);
        let calls = self.gather(&text)?;
        let calls: Vec<_> = calls.chunks(TEXT_BYTES).map(|text| String::from_utf8_lossy(text)).collect();
        let named = calls.iter().enumerate().map(|(rank, call)| format!("rank {rank} calls {}", call.trim_end()));
        let detail = named.collect::<Vec<_>>().join(", ");
        Err(Error::Mismatch { operation: self.op.kind().to_string(), detail })
    }

    fn gather(&mut self, mine: &[u8]) -> Result<Vec<u8>> {
        let gathered = self.steps.gather(mine, self.size);
        self.has_begun |= gathered.is_ok();
        gathered.map_err(|error| self.named(error))
    }

    /// Merges this rank's share of the inputs of all ranks.
    fn merge_share(&mut self, input: Tensor, result: &Tensor) -> Result<()> {
        let send_counts = (0..self.size).map(|rank| self.share(&input, rank).len()).collect();
        let mine = result.elements();
        let all = self.scratch(mine * self.size)?;
        let recv_counts = vec![mine; self.size].into();
        self.enqueue(Op::AllToAllV { src: Some(input), send_counts, dst: all.clone(), recv_counts })?;
        self.merge(&all, result)
    }

    /// The elements of a tensor that `rank` merges: whole rows.
    fn share(&self, tensor: &Tensor, rank: usize) -> Range<usize> {
        let row = self.op.row();
        let rows = tensor.elements() / row;
        let start = |rank: usize| rows * rank / self.size * row;
        start(rank)..start(rank + 1)
    }

    fn is_small(&self, input: &Tensor) -> bool {
        input.byte_len().saturating_mul(self.size) <= MAX_GATHERED_BYTES
    }

    fn scratch(&mut self, elements: usize) -> Result<Tensor> {
        let dtype = self.op.dtype().ok_or_else(|| Error::invalid(format!("{} has no tensor", self.op.kind())))?;
        self.steps.scratch(dtype, elements)
    }

    /// Merges one block for each rank.
    fn merge(&mut self, all: &Tensor, result: &Tensor) -> Result<()> {
        let (merge, blocks) = (self.merge, self.size);
        let merged = self.steps.merge(all, result, &mut |bytes| merge.merge_blocks(bytes, blocks));
        merged.map_err(|error| self.named(error))
    }

    fn enqueue(&mut self, step: Op) -> Result<()> {
        let ended = self.steps.run_step(step);
        self.has_begun |= ended.is_ok();
        ended.map_err(|error| self.named(error))
    }

    /// The error of a step, with the operation.
    fn named(&self, error: Error) -> Error {
        match error {
            Error::Deadline { operation, after, state } => {
                Error::Deadline { operation: self.with_step(&operation), after, state }
            }
            // The communicator was aborted between two steps.
            Error::Broken { cause, .. } if self.has_begun => Error::Aborted { cause },
            Error::Broken { cause, .. } => Error::Broken { operation: self.op.signature(self.size), cause },
            Error::Mismatch { operation, detail } => Error::Mismatch { operation: self.with_step(&operation), detail },
            error => error,
        }
    }

    fn with_step(&self, step: &str) -> String {
        format!("{}, in its {step}", self.op.signature(self.size))
    }
}

/// The elements of a contiguous tensor, as one dimension.
fn flat(tensor: &Tensor) -> Result<Tensor> {
    tensor.window(0, [tensor.elements()])
}
