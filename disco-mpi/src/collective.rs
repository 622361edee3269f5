//! Operations as MPI's.
//!
//! Nothing is reduced or moved here that the library does not do itself, but for three things: a reduction in numbers that it
//! does not know goes [in wider ones](crate::reduction); forms with counts by rank, blocks too large for a count of MPI's, and
//! reduce-scatters of few ranks are messages between all pairs; averages are sums, divided.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use disco_core::{DType, Op, Reduction, Result, Tensor};
use smallvec::SmallVec;

use crate::abi::Abi;
use crate::communicator::Communicator;
use crate::reduction::{self, Form};

/// The most elements or bytes of one call: counts are C ints.
const LIMIT: usize = 1 << 30;
/// The most ranks that reduce-scatter by messages between all pairs. Measured with f32 on 2 processors, 2 ranks, µs at 16 KiB,
/// 256 KiB and 4 MiB: Open MPI 5.0.11 3.9, 22, 536 (its own 8.9, 58, 1210), MPICH 5.0.2 5.5, 41, 764 (10, 57, 862), Intel MPI
/// 2021.18 3.5, 27, 617 (4.3, 52, 832). With 4 ranks both are about as fast; with many, messages are too many.
const PAIRS: usize = 8;
/// Bytes of a piece of these messages.
const PIECE: usize = 256 << 10;
/// Bytes of wider numbers at a time.
const PIECE_WIDE: usize = 4 << 20;
/// Tags of messages: of users' sends, and of those that make up a collective.
const USER: c_int = 0;
const OWN: c_int = 1;

/// Calls a function of MPI's, or the form of it that is waited for: both take the same, and then the communicator.
macro_rules! call {
    ($self:ident, $op:expr, $names:expr, $blocking:ident, $polled:ident, ($($arg:expr),*)) => {
        $self.run($names, $op, |mpi, comm, request| match request {
            // SAFETY: what is passed lies in tensors that are claimed or in this rank's scratch memory: it stays, and what is
            // written is nobody else's, until the operation is over.
            None => unsafe { (mpi.table.$blocking)($($arg,)* comm) },
            // SAFETY: as above.
            Some(request) => unsafe { (mpi.table.$polled)($($arg,)* comm, request) },
        })
    };
}

/// Bytes of this rank, inside tensors that are claimed or in its scratch memory, until the operation is over.
#[derive(Clone, Copy, Debug)]
struct Span {
    data: *mut u8,
    bytes: usize,
}

/// Who gets the result of a reduction.
#[derive(Clone, Copy, Debug)]
enum Goal {
    All,
    Root(usize),
    /// Each a block.
    Blocks,
}

/// A message to or from a rank.
type Message = (usize, Span);

impl Span {
    const NONE: Self = Self { data: ptr::null_mut(), bytes: 0 };

    fn of(tensor: &Tensor) -> Self {
        Self { data: tensor.data(), bytes: tensor.byte_len() }
    }

    /// A part, which lies inside.
    fn part(self, start: usize, bytes: usize) -> Self {
        debug_assert!(start + bytes <= self.bytes, "{start} + {bytes} of {self:?}");
        Self { data: self.data.wrapping_add(start), bytes }
    }

    fn block(self, index: usize, size: usize) -> Self {
        let bytes = self.bytes / size;
        self.part(index * bytes, bytes)
    }

    /// Pieces of at most so many bytes.
    fn pieces(self, most: usize) -> impl Iterator<Item = Self> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let bytes = most.min(self.bytes - start);
            let piece = self.part(start, bytes);
            start += bytes;
            (bytes > 0).then_some(piece)
        })
    }

    fn read(&self) -> *const c_void {
        self.data.cast_const().cast()
    }

    fn write(&self) -> *mut c_void {
        self.data.cast()
    }

    fn bytes(&self) -> &[u8] {
        match self.bytes {
            0 => &[],
            // SAFETY: the bytes are this rank's, and nobody writes to them meanwhile.
            bytes => unsafe { std::slice::from_raw_parts(self.data, bytes) },
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self.bytes {
            0 => &mut [],
            // SAFETY: the bytes are this rank's, and nobody else uses them meanwhile.
            bytes => unsafe { std::slice::from_raw_parts_mut(self.data, bytes) },
        }
    }

    /// Copies from bytes that may overlap.
    fn copy(self, from: Self) {
        // SAFETY: as in `bytes` and `bytes_mut`; both have as many.
        unsafe { ptr::copy(from.data, self.data, self.bytes.min(from.bytes)) };
    }
}

fn span(tensor: Option<&Tensor>) -> Span {
    tensor.map_or(Span::NONE, Span::of)
}

impl<A: Abi> Communicator<A> {
    /// Runs one collective.
    pub(crate) fn collective(&mut self, op: &Op) -> Result<()> {
        let (me, size) = (self.me(), self.ranks());
        let at_root = op.root().is_none_or(|root| root.index() == me);
        let root = op.root().map_or(0, disco_core::Rank::index);
        let (src, dst) = (op.src().map(Span::of), span(op.dst()));
        match op {
            Op::Barrier => self.barrier(op),
            Op::AllReduce { reduction, .. } => self.reduce(op, *reduction, Goal::All, src.unwrap_or(dst), dst),
            Op::Reduce { reduction, .. } => {
                let dst = if at_root { dst } else { Span::NONE };
                self.reduce(op, *reduction, Goal::Root(root), src.unwrap_or(dst), dst)
            }
            Op::ReduceScatter { reduction, .. } => self.reduce(op, *reduction, Goal::Blocks, src.unwrap_or(dst), dst),
            Op::Broadcast { .. } => {
                if let Some(src) = src.filter(|_| at_root) {
                    dst.copy(src);
                }
                dst.pieces(LIMIT).try_for_each(|piece| self.broadcast(op, piece, root))
            }
            Op::AllGather { .. } => self.all_gather(op, src, dst),
            Op::Gather { .. } => {
                let dst = if at_root { dst } else { Span::NONE };
                self.gather(op, src.unwrap_or(Span::NONE), src.is_none(), dst, root)
            }
            Op::Scatter { .. } => {
                let src = if at_root { span(op.src()) } else { Span::NONE };
                self.scatter(op, src, dst, op.dst().is_none(), root)
            }
            Op::AllToAll { .. } => {
                let src = src.unwrap_or_else(|| self.copied(dst));
                self.all_to_all(op, src, dst)
            }
            Op::AllGatherV { counts, .. } => {
                let width = op.dtype().map_or(0, DType::size);
                let mine = src.unwrap_or_else(|| uneven(dst, counts, me, width));
                let sends = (0..size).map(|peer| (peer, mine)).collect();
                self.exchange(op, sends, (0..size).map(|peer| (peer, uneven(dst, counts, peer, width))).collect())
            }
            Op::AllToAllV { send_counts, recv_counts, .. } => {
                let width = op.dtype().map_or(0, DType::size);
                let src = src.unwrap_or_else(|| self.copied(dst));
                let sends = (0..size).map(|peer| (peer, uneven(src, send_counts, peer, width))).collect();
                self.exchange(op, sends, (0..size).map(|peer| (peer, uneven(dst, recv_counts, peer, width))).collect())
            }
            op => {
                let operation = op.kind().to_string();
                Err(disco_core::Error::Unsupported { backend: crate::backend::NAME, operation, dtype: op.dtype() })
            }
        }
    }

    /// Runs a group of sends and receives.
    pub(crate) fn transfer(&mut self, group: &[Op]) -> Result<()> {
        let Some(first) = group.first() else { return Ok(()) };
        let sends = group.iter().filter_map(|op| match op {
            Op::Send { src, to } => Some((to.index(), Span::of(src))),
            _ => None,
        });
        let recvs = group.iter().filter_map(|op| match op {
            Op::Recv { dst, from } => Some((from.index(), Span::of(dst))),
            _ => None,
        });
        self.pass(first, &sends.collect::<Vec<_>>(), &recvs.collect::<Vec<_>>(), USER)
    }

    /// Messages between pairs, of which those to oneself are copied.
    fn exchange(&mut self, op: &Op, sends: Vec<Message>, recvs: Vec<Message>) -> Result<()> {
        let me = self.me();
        let own = |messages: &[Message]| messages.iter().find(|(peer, _)| *peer == me).map(|(_, span)| *span);
        if let (Some(from), Some(to)) = (own(&sends), own(&recvs)) {
            to.copy(from);
        }
        let others = |messages: Vec<Message>| messages.into_iter().filter(|(peer, _)| *peer != me).collect::<Vec<_>>();
        self.pass(op, &others(sends), &others(recvs), OWN)
    }

    /// Starts all, the receives first, and waits.
    fn pass(&self, op: &Op, sends: &[Message], recvs: &[Message], tag: c_int) -> Result<()> {
        match (sends, recvs) {
            ([(peer, span)], []) if span.bytes <= LIMIT => return self.send(op, *peer, *span, tag),
            ([], [(peer, span)]) if span.bytes <= LIMIT => return self.recv(op, *peer, *span, tag),
            _ => {}
        }
        let (mpi, comm, byte) = (self.mpi, self.comm, self.mpi.constants.byte);
        let mut requests = SmallVec::<[A::Handle; 16]>::new();
        let mut start = |function, call: &mut dyn FnMut(&mut A::Handle) -> c_int| {
            let mut request = mpi.constants.request_null;
            mpi.about.check(function, call(&mut request)).map(|()| requests.push(request))
        };
        // An empty message is one, too.
        let pieces = |span: Span| span.pieces(LIMIT).chain((span.bytes == 0).then_some(span));
        for &(peer, span) in recvs {
            for piece in pieces(span) {
                start("MPI_Irecv", &mut |request| {
                    // SAFETY: the piece stays, and is nobody else's, until the request is done.
                    unsafe {
                        (mpi.table.irecv)(piece.write(), piece.bytes as c_int, byte, peer as c_int, tag, comm, request)
                    }
                })?;
            }
        }
        for &(peer, span) in sends {
            for piece in pieces(span) {
                start("MPI_Isend", &mut |request| {
                    // SAFETY: the piece stays, and nobody writes to it, until the request is done.
                    unsafe {
                        (mpi.table.isend)(piece.read(), piece.bytes as c_int, byte, peer as c_int, tag, comm, request)
                    }
                })?;
            }
        }
        self.complete(op, &mut requests)
    }

    fn send(&self, op: &Op, peer: usize, span: Span, tag: c_int) -> Result<()> {
        let (from, bytes, byte) = (span.read(), span.bytes as c_int, self.mpi.constants.byte);
        call!(self, op, ["MPI_Send", "MPI_Isend"], send, isend, (from, bytes, byte, peer as c_int, tag))
    }

    fn recv(&self, op: &Op, peer: usize, span: Span, tag: c_int) -> Result<()> {
        let (to, bytes, peer) = (span.write(), span.bytes as c_int, peer as c_int);
        self.run(["MPI_Recv", "MPI_Irecv"], op, |mpi, comm, request| {
            let byte = mpi.constants.byte;
            match request {
                // SAFETY: as for a `call!`.
                None => unsafe { (mpi.table.recv)(to, bytes, byte, peer, tag, comm, mpi.status_ignore()) },
                // SAFETY: as above.
                Some(request) => unsafe { (mpi.table.irecv)(to, bytes, byte, peer, tag, comm, request) },
            }
        })
    }

    pub(crate) fn barrier(&self, op: &Op) -> Result<()> {
        call!(self, op, ["MPI_Barrier", "MPI_Ibarrier"], barrier, ibarrier, ())
    }

    fn broadcast(&self, op: &Op, piece: Span, root: usize) -> Result<()> {
        let byte = self.mpi.constants.byte;
        call!(
            self,
            op,
            ["MPI_Bcast", "MPI_Ibcast"],
            bcast,
            ibcast,
            (piece.write(), piece.bytes as c_int, byte, root as c_int)
        )
    }

    fn all_gather(&mut self, op: &Op, src: Option<Span>, dst: Span) -> Result<()> {
        let size = self.ranks();
        let block = dst.bytes / size;
        if block > LIMIT {
            let mine = src.unwrap_or_else(|| dst.block(self.me(), size));
            let sends = (0..size).map(|peer| (peer, mine)).collect();
            return self.exchange(op, sends, (0..size).map(|peer| (peer, dst.block(peer, size))).collect());
        }
        let from = src.map_or(self.in_place(), |src| src.read());
        let (to, bytes, byte) = (dst.write(), block as c_int, self.mpi.constants.byte);
        call!(
            self,
            op,
            ["MPI_Allgather", "MPI_Iallgather"],
            allgather,
            iallgather,
            (from, bytes, byte, to, bytes, byte)
        )
    }

    fn gather(&mut self, op: &Op, src: Span, is_in_place: bool, dst: Span, root: usize) -> Result<()> {
        let (me, size) = (self.me(), self.ranks());
        let block = if me == root { dst.bytes / size } else { src.bytes };
        if block > LIMIT {
            let blocks = |peer| (peer, dst.block(peer, size));
            let recvs = if me == root { (0..size).map(blocks).collect() } else { Vec::new() };
            let sends = if is_in_place { Vec::new() } else { vec![(root, src)] };
            return self.exchange(op, sends, recvs);
        }
        let from = if is_in_place && me == root { self.in_place() } else { src.read() };
        let (to, bytes, byte, root) = (dst.write(), block as c_int, self.mpi.constants.byte, root as c_int);
        call!(self, op, ["MPI_Gather", "MPI_Igather"], gather, igather, (from, bytes, byte, to, bytes, byte, root))
    }

    fn scatter(&mut self, op: &Op, src: Span, dst: Span, is_in_place: bool, root: usize) -> Result<()> {
        let (me, size) = (self.me(), self.ranks());
        let block = if me == root { src.bytes / size } else { dst.bytes };
        if block > LIMIT {
            let blocks = |peer| (peer, src.block(peer, size));
            let sends = if me == root { (0..size).map(blocks).collect() } else { Vec::new() };
            let recvs = if is_in_place { Vec::new() } else { vec![(root, dst)] };
            return self.exchange(op, sends, recvs);
        }
        let to = if is_in_place && me == root { self.in_place().cast_mut() } else { dst.write() };
        let (from, bytes, byte, root) = (src.read(), block as c_int, self.mpi.constants.byte, root as c_int);
        call!(self, op, ["MPI_Scatter", "MPI_Iscatter"], scatter, iscatter, (from, bytes, byte, to, bytes, byte, root))
    }

    fn all_to_all(&mut self, op: &Op, src: Span, dst: Span) -> Result<()> {
        let size = self.ranks();
        let block = dst.bytes / size;
        if block > LIMIT {
            let blocks = |span: Span| (0..size).map(|peer| (peer, span.block(peer, size))).collect();
            return self.exchange(op, blocks(src), blocks(dst));
        }
        let (from, to, bytes, byte) = (src.read(), dst.write(), block as c_int, self.mpi.constants.byte);
        call!(self, op, ["MPI_Alltoall", "MPI_Ialltoall"], alltoall, ialltoall, (from, bytes, byte, to, bytes, byte))
    }

    /// Reduces `src` to `dst`, which begin at the same place where that is done in place, and which is empty where this rank
    /// gets nothing.
    fn reduce(&mut self, op: &Op, reduction: Reduction, goal: Goal, src: Span, dst: Span) -> Result<()> {
        let Some(dtype) = op.dtype() else { return Ok(()) };
        let size = self.ranks();
        let ranks = (reduction == Reduction::Avg).then_some(size);
        let is_in_place = src.data == dst.data;
        match reduction::form(dtype, reduction, self.wrong) {
            Form::Native => {
                self.reduce_native(op, dtype, reduction, goal, (src, dst, is_in_place))?;
                if let Some(ranks) = ranks {
                    let result = if matches!(goal, Goal::Blocks) { src.bytes / size } else { dst.bytes };
                    reduction::divide(dtype, dst.part(0, result).bytes_mut(), ranks);
                }
            }
            Form::Wide(wide, numbers) => self.reduce_wide(op, (dtype, wide, numbers), reduction, goal, (src, dst))?,
        }
        Ok(())
    }

    /// The same, a piece at a time, with `numbers` of `wide` for each element.
    fn reduce_wide(
        &mut self,
        op: &Op,
        (dtype, wide, numbers): (DType, DType, usize),
        reduction: Reduction,
        goal: Goal,
        (src, dst): (Span, Span),
    ) -> Result<()> {
        let size = self.ranks();
        let ranks = (reduction == Reduction::Avg).then_some(size);
        let blocks = if matches!(goal, Goal::Blocks) { size } else { 1 };
        let width = numbers * wide.size();
        let times = |bytes: usize| bytes / dtype.size() * width;
        let all = src.part(0, src.bytes / blocks);
        let most = all.bytes.min((PIECE_WIDE / blocks / width).max(1) * dtype.size());
        let bytes = times(most) * blocks;
        let widened = Span { data: self.allocate(bytes), bytes };
        let kept = self.scratch.len();
        for (index, piece) in all.pieces(most.max(1)).enumerate() {
            let widened = widened.part(0, times(piece.bytes) * blocks);
            for block in 0..blocks {
                let elements = src.block(block, blocks).part(index * most, piece.bytes);
                reduction::widen(dtype, numbers, elements.bytes(), widened.block(block, blocks).bytes_mut());
            }
            self.reduce_native(op, wide, reduction, goal, (widened, widened, true))?;
            self.scratch.truncate(kept);
            if dst.bytes > 0 {
                let (sums, mut result) = (widened.part(0, times(piece.bytes)), dst.part(index * most, piece.bytes));
                reduction::narrow(dtype, numbers, sums.bytes(), result.bytes_mut(), ranks);
            }
        }
        Ok(())
    }

    /// The same for numbers that MPI knows.
    fn reduce_native(
        &mut self,
        op: &Op,
        dtype: DType,
        reduction: Reduction,
        goal: Goal,
        (src, dst, is_in_place): (Span, Span, bool),
    ) -> Result<()> {
        let Some((number, function)) = self.mpi.constants.reduction(dtype, reduction) else {
            let operation = op.kind().to_string();
            return Err(disco_core::Error::Unsupported {
                backend: crate::backend::NAME,
                operation,
                dtype: Some(dtype),
            });
        };
        let (me, size, width) = (self.me(), self.ranks(), dtype.size());
        let most = LIMIT * width;
        let from = |span: Span| if is_in_place { self.in_place() } else { span.read() };
        let to_root = |src: Span, dst: Span, root: usize| {
            src.pieces(most).enumerate().try_for_each(|(index, piece)| {
                let (from, to) = match me == root {
                    true => (from(piece), dst.part(index * most, piece.bytes).write()),
                    false => (piece.read(), ptr::null_mut()),
                };
                let (count, root) = ((piece.bytes / width) as c_int, root as c_int);
                call!(
                    self,
                    op,
                    ["MPI_Reduce", "MPI_Ireduce"],
                    reduce,
                    ireduce,
                    (from, to, count, number, function, root)
                )
            })
        };
        match goal {
            Goal::All => src.pieces(most).enumerate().try_for_each(|(index, piece)| {
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
            Goal::Root(root) => to_root(src, dst, root),
            Goal::Blocks if size <= PAIRS || src.bytes / size > most => {
                let mine = src.block(me, size);
                let sum = if is_in_place { mine } else { dst };
                sum.copy(mine);
                self.sum_blocks(op, src, sum, (number, function, width))?;
                dst.part(0, mine.bytes).copy(sum);
                Ok(())
            }
            Goal::Blocks => {
                let (from, to, count) = (from(src), dst.write(), (src.bytes / size / width) as c_int);
                let names = ["MPI_Reduce_scatter_block", "MPI_Ireduce_scatter_block"];
                call!(self, op, names, reduce_scatter_block, ireduce_scatter_block, (from, to, count, number, function))
            }
        }
    }

    /// Reduces this rank's block of all ranks to `sum`, which has its own already: each piece of a block goes to its rank, which
    /// computes.
    fn sum_blocks(
        &mut self,
        op: &Op,
        src: Span,
        sum: Span,
        (number, function, width): (A::Handle, A::Handle, usize),
    ) -> Result<()> {
        let (me, size) = (self.me(), self.ranks());
        let peers = (1..size).map(|step| (me + step) % size);
        let most = PIECE.min(sum.bytes);
        let scratch = Span { data: self.allocate(most * (size - 1)), bytes: most * (size - 1) };
        for (index, piece) in sum.pieces(most).enumerate() {
            let parts = peers.clone().enumerate();
            let recvs: Vec<_> = parts.clone().map(|(at, peer)| (peer, scratch.part(at * most, piece.bytes))).collect();
            let theirs = |peer| src.block(peer, size).part(index * most, piece.bytes);
            let sends: Vec<_> = peers.clone().map(|peer| (peer, theirs(peer))).collect();
            self.pass(op, &sends, &recvs, OWN)?;
            for (_, part) in recvs {
                let count = (piece.bytes / width) as c_int;
                // SAFETY: both have so many elements; they are this rank's.
                let code =
                    unsafe { (self.mpi.table.reduce_local)(part.read(), piece.write(), count, number, function) };
                self.mpi.about.check("MPI_Reduce_local", code)?;
            }
        }
        Ok(())
    }

    /// A copy that stays until the operation is over.
    fn copied(&mut self, span: Span) -> Span {
        let copy = Span { data: self.allocate(span.bytes), bytes: span.bytes };
        copy.copy(span);
        copy
    }

    fn in_place(&self) -> *const c_void {
        ptr::without_provenance(self.mpi.constants.in_place)
    }
}

/// Block `index` where block `i` has `counts[i]` elements.
fn uneven(span: Span, counts: &[usize], index: usize, width: usize) -> Span {
    span.part(counts[..index].iter().sum::<usize>() * width, counts[index] * width)
}
