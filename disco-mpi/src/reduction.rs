//! Reductions, of dtypes that MPI supports and of others.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use disco_core::{DType, Error, Op, Reduction, Result};

use crate::NAME;
use crate::abi::Abi;
use crate::communicator::{COLLECTIVE_TAG, Communicator, call};
use crate::numbers::{self, Form};
use crate::span::{MAX_COUNT, Span};

/// The most ranks that reduce-scatter with messages between all pairs. With more ranks the number of messages is too
/// large.
///
/// Measured with f32 and 2 ranks on 2 processors, in µs at 16 KiB, 256 KiB and 4 MiB, with MPI's own reduce-scatter in
/// parentheses: Open MPI 5.0.11 3.9, 22, 536 (8.9, 58, 1210); MPICH 5.0.2 5.5, 41, 764 (10, 57, 862); Intel MPI 2021.18
/// 3.5, 27, 617 (4.3, 52, 832). With 4 ranks the times are about equal.
const MAX_PAIRWISE_RANKS: usize = 8;
/// Size up to which no all-reduce is in place: Open MPI takes 1.2 to 1.5 times as long in place. A copy of more bytes
/// takes longer than that.
const MAX_COPIED_BYTES: usize = 1 << 20;
/// Size of the pieces of these messages.
const PAIRWISE_PIECE_BYTES: usize = 256 << 10;
/// Size of the pieces of reductions in wider numbers.
const WIDE_PIECE_BYTES: usize = 4 << 20;

/// The ranks that get the result of a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination {
    /// All ranks get the whole result.
    All,
    /// This rank gets the whole result.
    Root(usize),
    /// Each rank gets a block.
    Blocks,
}

/// The elements of a reduction and the room for its result.
#[derive(Clone, Copy)]
struct Buffers {
    src: Span,
    dst: Span,
    is_in_place: bool,
}

/// A reduction as MPI knows it.
struct Native<H> {
    datatype: H,
    function: H,
    /// Bytes of an element.
    width: usize,
}

/// The numbers to which each element is converted.
#[derive(Clone, Copy)]
struct Wide {
    dtype: DType,
    numbers: usize,
}

impl<A: Abi> Communicator<A> {
    /// Reduces `src` to `dst`. In place, both begin at the same address. `dst` is empty if this rank gets no result.
    pub(crate) fn reduce(
        &mut self,
        op: &Op,
        reduction: Reduction,
        destination: Destination,
        src: Span,
        dst: Span,
    ) -> Result<()> {
        let Some(dtype) = op.dtype() else { return Ok(()) };
        let size = self.ranks();
        let ranks = (reduction == Reduction::Avg).then_some(size);
        match numbers::form(dtype, reduction, self.faulty) {
            Form::Native => {
                let (src, is_in_place) = match destination {
                    Destination::All => self.alike(src, dst),
                    _ => (src, src.data == dst.data),
                };
                self.reduce_native(op, dtype, reduction, destination, Buffers { src, dst, is_in_place })?;
                if let Some(ranks) = ranks {
                    let result = if matches!(destination, Destination::Blocks) { src.bytes / size } else { dst.bytes };
                    numbers::divide(dtype, dst.part(0, result).bytes_mut(), ranks);
                }
            }
            Form::Wide(wide, numbers) => {
                let wide = Wide { dtype: wide, numbers };
                self.reduce_wide(op, dtype, wide, reduction, destination, src, dst)?
            }
        }
        Ok(())
    }

    /// The source of an all-reduce, and whether it is in place. MPI wants the same from all ranks, and a rank does not know
    /// what other ranks pass, so the choice depends on the size alone.
    fn alike(&mut self, src: Span, dst: Span) -> (Span, bool) {
        match (src.bytes > MAX_COPIED_BYTES, src.data == dst.data) {
            (true, false) => {
                dst.copy(src);
                (dst, true)
            }
            (false, true) => (self.copied(src), false),
            (_, is_in_place) => (src, is_in_place),
        }
    }

    /// Like [`Communicator::reduce`], with each element converted to wider numbers, one piece after another.
    #[allow(clippy::too_many_arguments, reason = "each is a part of the operation")]
    fn reduce_wide(
        &mut self,
        op: &Op,
        dtype: DType,
        Wide { dtype: wide, numbers }: Wide,
        reduction: Reduction,
        destination: Destination,
        src: Span,
        dst: Span,
    ) -> Result<()> {
        let size = self.ranks();
        let ranks = (reduction == Reduction::Avg).then_some(size);
        let blocks = if matches!(destination, Destination::Blocks) { size } else { 1 };
        let width = numbers * wide.size();
        let times = |bytes: usize| bytes / dtype.size() * width;
        let all = src.part(0, src.bytes / blocks);
        let most = all.bytes.min((WIDE_PIECE_BYTES / blocks / width).max(1) * dtype.size());
        let bytes = times(most) * blocks;
        let widened = Span { data: self.allocate(bytes), bytes };
        let kept = self.scratch.len();
        for (index, piece) in all.pieces(most.max(1)).enumerate() {
            let widened = widened.part(0, times(piece.bytes) * blocks);
            for block in 0..blocks {
                let elements = src.block(block, blocks).part(index * most, piece.bytes);
                numbers::widen(
                    dtype,
                    wide,
                    numbers,
                    reduction,
                    elements.bytes(),
                    widened.block(block, blocks).bytes_mut(),
                );
            }
            let buffers = Buffers { src: widened, dst: widened, is_in_place: true };
            self.reduce_native(op, wide, reduction, destination, buffers)?;
            self.scratch.truncate(kept);
            if dst.bytes > 0 {
                let (sums, mut result) = (widened.part(0, times(piece.bytes)), dst.part(index * most, piece.bytes));
                numbers::narrow(dtype, wide, numbers, sums.bytes(), result.bytes_mut(), ranks);
            }
        }
        Ok(())
    }

    /// Like [`Communicator::reduce`], for a dtype that MPI supports.
    fn reduce_native(
        &mut self,
        op: &Op,
        dtype: DType,
        reduction: Reduction,
        destination: Destination,
        Buffers { src, dst, is_in_place }: Buffers,
    ) -> Result<()> {
        let Some((number, function)) = self.mpi.constants.reduction(dtype, reduction) else {
            let operation = op.kind().to_string();
            return Err(Error::Unsupported { backend: NAME, operation, dtype: Some(dtype) });
        };
        let (me, size, width) = (self.me(), self.ranks(), dtype.size());
        let most = MAX_COUNT * width;
        let from = |span: Span| if is_in_place { self.in_place() } else { span.read() };
        match destination {
            Destination::All => src.pieces(most).enumerate().try_for_each(|(index, piece)| {
                let (from, to) = (from(piece), dst.part(index * most, piece.bytes).write());
                let count = (piece.bytes / width) as c_int;
                call!(
                    self,
                    op,
                    ["MPI_Allreduce", "MPI_Iallreduce"],
                    allreduce,
                    iallreduce,
                    (from, to, count, number, function)
                )
            }),
            Destination::Root(root) => src.pieces(most).enumerate().try_for_each(|(index, piece)| {
                let (from, to) = if me == root {
                    (from(piece), dst.part(index * most, piece.bytes).write())
                } else {
                    (piece.read(), ptr::null_mut())
                };
                let (names, count) = (["MPI_Reduce", "MPI_Ireduce"], (piece.bytes / width) as c_int);
                call!(self, op, names, reduce, ireduce, (from, to, count, number, function, root as c_int))
            }),
            Destination::Blocks if size <= MAX_PAIRWISE_RANKS || src.bytes > most => {
                let mine = src.block(me, size);
                // In place, the first block belongs to another rank until it is sent, so the result is made in block
                // `me`.
                let sum = if is_in_place { mine } else { dst };
                if !is_in_place {
                    sum.copy(mine);
                }
                self.sum_blocks(op, src, sum, &Native { datatype: number, function, width })?;
                if is_in_place {
                    dst.part(0, mine.bytes).copy(sum);
                }
                Ok(())
            }
            Destination::Blocks => {
                // Never in place, so that it is alike on all ranks: `dst` has no room for all blocks.
                let src = if is_in_place { self.copied(src) } else { src };
                let (from, to, count) = (src.read(), dst.write(), (src.bytes / size / width) as c_int);
                let names = ["MPI_Reduce_scatter_block", "MPI_Ireduce_scatter_block"];
                call!(self, op, names, reduce_scatter_block, ireduce_scatter_block, (from, to, count, number, function))
            }
        }
    }

    /// Reduces this rank's block of all ranks to `sum`, which has this rank's own block already. Ranks send each piece
    /// of a block to the rank of the block, which reduces it.
    fn sum_blocks(
        &mut self,
        op: &Op,
        src: Span,
        sum: Span,
        &Native { datatype, function, width }: &Native<A::Handle>,
    ) -> Result<()> {
        let (me, size) = (self.me(), self.ranks());
        let peers = (1..size).map(|step| (me + step) % size);
        let most = PAIRWISE_PIECE_BYTES.min(sum.bytes);
        let scratch = Span { data: self.allocate(most * (size - 1)), bytes: most * (size - 1) };
        for (index, piece) in sum.pieces(most).enumerate() {
            let parts = peers.clone().enumerate();
            let recvs: Vec<_> = parts.clone().map(|(at, peer)| (peer, scratch.part(at * most, piece.bytes))).collect();
            let theirs = |peer| src.block(peer, size).part(index * most, piece.bytes);
            let sends: Vec<_> = peers.clone().map(|peer| (peer, theirs(peer))).collect();
            self.pass(op, &sends, &recvs, COLLECTIVE_TAG)?;
            for (_, part) in recvs {
                let count = (piece.bytes / width) as c_int;
                // SAFETY: both spans have `count` elements, and belong to this rank.
                let code =
                    unsafe { (self.mpi.table.reduce_local)(part.read(), piece.write(), count, datatype, function) };
                self.mpi.about.check("MPI_Reduce_local", code)?;
            }
        }
        Ok(())
    }
}
