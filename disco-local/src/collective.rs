//! Schedules of the collectives: between two points, a byte has either one writer or any number of readers.
//!
//! Each rank writes to its own tensors and reads those of its peers. Comments say why nothing is read while it is written;
//! the [`Turn::sync`] that ends an operation keeps a rank's tensors in place until all have read them.

use disco_core::{Error, Op, Result, Tensor};

use crate::agree::Call;
use crate::backend;
use crate::reduce::reduce;
use crate::turn::Turn;

/// Runs one collective.
pub(crate) fn run(turn: &mut Turn<'_>, op: &Op) -> Result<()> {
    let (me, size) = (turn.rank(), turn.size());
    let round = turn.meet(Call::Op(op.clone()))?;
    if let Op::Barrier = op {
        return Ok(());
    }
    let copying = turn.start()?;
    let inputs: Vec<Tensor> =
        round.ops.iter().enumerate().map(|(rank, op)| input(op, rank, size)).collect::<Result<_>>()?;
    match op {
        Op::AllReduce { dst, reduction, .. } => {
            // Each rank reduces its share of the elements; in place too, for that share of its own only it reads.
            let shares: Vec<Tensor> = inputs.iter().map(|input| share(input, me, size)).collect::<Result<_>>()?;
            reduce(&copying, *reduction, &shares, &share(dst, me, size)?)?;
            turn.sync()?;
            let copying = turn.start()?;
            for (peer, op) in round.ops.iter().enumerate() {
                let Op::AllReduce { dst: reduced, .. } = op else { return unsupported(op) };
                if peer != me {
                    copying.copy(&share(dst, peer, size)?, &share(reduced, peer, size)?)?;
                }
            }
        }
        // Only the root reads what it has itself.
        Op::Reduce { dst: Some(dst), reduction, root, .. } if root.index() == me => {
            reduce(&copying, *reduction, &inputs, dst)?;
        }
        Op::ReduceScatter { src, dst, reduction } => {
            let blocks: Vec<Tensor> = inputs.iter().map(|input| block(input, me, size)).collect::<Result<_>>()?;
            // In place, only this rank reads its block `me`; the first one is free when all are done.
            let landing = if src.is_some() { dst.clone() } else { block(dst, me, size)? };
            reduce(&copying, *reduction, &blocks, &landing)?;
            turn.sync()?;
            return turn.start()?.copy(&dst.window(0, landing.shape().clone())?, &landing);
        }
        // In place, the own block is its own source, which `copy` leaves alone.
        Op::AllGather { dst, .. } => {
            for (peer, input) in inputs.iter().enumerate() {
                copying.copy(&block(dst, peer, size)?, input)?;
            }
        }
        Op::Gather { dst: Some(dst), root, .. } if root.index() == me => {
            for (peer, input) in inputs.iter().enumerate() {
                copying.copy(&block(dst, peer, size)?, input)?;
            }
        }
        Op::AllGatherV { dst, counts, .. } => {
            for (peer, input) in inputs.iter().enumerate() {
                copying.copy(&uneven_block(dst, peer, counts)?, input)?;
            }
        }
        Op::Broadcast { dst, root, .. } => copying.copy(dst, &inputs[root.index()])?,
        Op::Scatter { dst: Some(dst), root, .. } => copying.copy(dst, &block(&inputs[root.index()], me, size)?)?,
        Op::AllToAll { src, dst } => {
            // In place, peers read what is to be overwritten: it lands elsewhere until all are done.
            let landing = if src.is_some() { dst.clone() } else { Tensor::zeros(dst.dtype(), dst.shape().clone())? };
            for (peer, input) in inputs.iter().enumerate() {
                copying.copy(&block(&landing, peer, size)?, &block(input, me, size)?)?;
            }
            turn.sync()?;
            return turn.start()?.copy(dst, &landing);
        }
        Op::AllToAllV { src, dst, recv_counts, .. } => {
            let landing = if src.is_some() { dst.clone() } else { Tensor::zeros(dst.dtype(), dst.shape().clone())? };
            for (peer, (op, input)) in round.ops.iter().zip(&inputs).enumerate() {
                let Op::AllToAllV { send_counts, .. } = op else { return unsupported(op) };
                copying.copy(&uneven_block(&landing, peer, recv_counts)?, &uneven_block(input, me, send_counts)?)?;
            }
            turn.sync()?;
            return turn.start()?.copy(dst, &landing);
        }
        // Not the root, or the root of a scatter in place: others do the work.
        Op::Reduce { .. } | Op::Gather { .. } | Op::Scatter { .. } => {}
        op => return unsupported(op),
    }
    turn.sync()
}

/// What `rank` puts in: its `src`, or in place the part of its `dst` that `MPI_IN_PLACE` means.
fn input(op: &Op, rank: usize, size: usize) -> Result<Tensor> {
    match (op, op.src(), op.dst()) {
        (_, Some(src), _) => Ok(src.clone()),
        (Op::AllGather { .. } | Op::Gather { .. }, None, Some(dst)) => block(dst, rank, size),
        (Op::AllGatherV { counts, .. }, None, Some(dst)) => uneven_block(dst, rank, counts),
        (_, None, Some(dst)) => Ok(dst.clone()),
        (op, None, None) => unsupported(op),
    }
}

/// Block `index` of `size` equal ones.
fn block(tensor: &Tensor, index: usize, size: usize) -> Result<Tensor> {
    let count = tensor.elements() / size;
    part(tensor, index * count, count)
}

/// Block `index` where block `i` has `counts[i]` elements.
fn uneven_block(tensor: &Tensor, index: usize, counts: &[usize]) -> Result<Tensor> {
    part(tensor, counts[..index].iter().sum(), counts[index])
}

/// Share `index` of `size`, which differ by at most one element.
fn share(tensor: &Tensor, index: usize, size: usize) -> Result<Tensor> {
    let (least, extra) = (tensor.elements() / size, tensor.elements() % size);
    part(tensor, index * least + index.min(extra), least + usize::from(index < extra))
}

fn part(tensor: &Tensor, first: usize, count: usize) -> Result<Tensor> {
    tensor.window(first, [count as i64])
}

/// For operations that a later `disco-core` may know.
fn unsupported<T>(op: &Op) -> Result<T> {
    Err(Error::Unsupported { backend: backend::NAME, operation: op.kind().to_string(), dtype: op.dtype() })
}
