//! The operations. Each sends all of its messages before it waits for the first one, so ranks can't deadlock.

use disco_core::{DType, Error, Op, Reduction, Result, Tensor};

use crate::endpoint::Endpoint;

/// Runs a group of operations: point-to-point operations, all sends first, or collectives in order.
pub(crate) fn run(end: &mut Endpoint, ops: &[Op]) -> Result<()> {
    for op in ops {
        if let Op::Send { src, to } = op {
            end.post([to.index()], &src.bytes()?);
        }
    }
    ops.iter().try_for_each(|op| match op {
        Op::Send { .. } => Ok(()),
        Op::Recv { dst, from } => {
            let bytes = end.bytes(from.index(), dst.byte_len())?;
            write(dst, 0, &bytes)
        }
        Op::Barrier => barrier(end),
        Op::Broadcast { src, dst, root } => {
            let bytes = if root.index() == end.index() {
                let bytes = src.as_ref().unwrap_or(dst).bytes()?.to_vec();
                end.post(end.peers(), &bytes);
                bytes
            } else {
                end.bytes(root.index(), dst.byte_len())?
            };
            write(dst, 0, &bytes)
        }
        Op::AllGather { src, dst } => {
            let block = dst.byte_len() / (end.peers().count() + 1);
            let own = match src {
                Some(src) => src.bytes()?.to_vec(),
                // In place: the block of this rank is in `dst`.
                None => dst.bytes()?[end.index() * block..][..block].to_vec(),
            };
            let all = exchange(end, &own)?;
            all.iter().enumerate().try_for_each(|(rank, bytes)| write(dst, rank * block, bytes))
        }
        Op::AllReduce { src, dst, reduction } => {
            let own = src.as_ref().unwrap_or(dst).bytes()?.to_vec();
            let all = exchange(end, &own)?;
            // All ranks reduce in the order of ranks, so all of them get the same bits.
            let result = match dst.dtype() {
                DType::F32 => reduce(&all, *reduction, f32::from_ne_bytes, f32::to_ne_bytes),
                DType::F64 => reduce(&all, *reduction, f64::from_ne_bytes, f64::to_ne_bytes),
                other => return Err(Error::invalid(format!("all_reduce of {other}"))),
            };
            write(dst, 0, &result)
        }
        other => Err(Error::invalid(format!("{}: not an operation of this backend", other.kind().name()))),
    })
}

/// Waits until all ranks have called it.
pub(crate) fn barrier(end: &mut Endpoint) -> Result<()> {
    exchange(end, &[]).map(drop)
}

/// All-gather: returns the bytes of all ranks, in the order of ranks. All ranks pass the same number of bytes.
pub(crate) fn exchange(end: &mut Endpoint, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    end.post(end.peers(), own);
    let ranks = end.peers().count() + 1;
    let from = |rank| if rank == end.index() { Ok(own.to_vec()) } else { end.bytes(rank, own.len()) };
    (0..ranks).map(from).collect()
}

fn write(dst: &Tensor, at: usize, bytes: &[u8]) -> Result<()> {
    dst.bytes_mut()?[at..][..bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// The reduction over all ranks, element by element; `N` is the size of an element.
fn reduce<T: Copy + std::ops::Add<Output = T> + std::ops::Mul<Output = T>, const N: usize>(
    all: &[Vec<u8>],
    reduction: Reduction,
    read: fn([u8; N]) -> T,
    write: fn(T) -> [u8; N],
) -> Vec<u8> {
    let elements = |bytes: &[u8]| bytes.as_chunks::<N>().0.iter().map(|element| read(*element)).collect::<Vec<T>>();
    let mut result = elements(&all[0]);
    for bytes in &all[1..] {
        for (result, element) in result.iter_mut().zip(elements(bytes)) {
            *result = if reduction == Reduction::Prod { *result * element } else { *result + element };
        }
    }
    result.into_iter().flat_map(write).collect()
}
