//! Operations as calls of MPI.
//!
//! The library moves and reduces all data, with four exceptions. Reductions of dtypes that the library can't reduce
//! use [wider numbers](crate::reduction). V-forms, blocks that exceed a count of MPI, and reduce-scatters of few ranks
//! are messages between all pairs. Averages are sums that this crate divides. Reductions of programs are [steps](disco_core::op::run_in_steps).

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use disco_core::{DType, Error, Op, Result, Tensor};
use smallvec::SmallVec;

use crate::abi::Abi;
use crate::communicator::{COLLECTIVE_TAG, Communicator, USER_TAG, call};
use crate::reduction::Destination;
use crate::span::{MAX_COUNT, Span};

/// A message to or from a rank.
type Message = (usize, Span);
type Messages = SmallVec<[Message; 4]>;

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
            Op::AllReduce { reduction, .. } => self.reduce(op, *reduction, Destination::All, src.unwrap_or(dst), dst),
            Op::Reduce { reduction, .. } => {
                let dst = if at_root { dst } else { Span::NONE };
                self.reduce(op, *reduction, Destination::Root(root), src.unwrap_or(dst), dst)
            }
            Op::ReduceScatter { reduction, .. } => {
                self.reduce(op, *reduction, Destination::Blocks, src.unwrap_or(dst), dst)
            }
            Op::Broadcast { .. } => {
                if let Some(src) = src.filter(|_| at_root) {
                    dst.copy(src);
                }
                dst.pieces(MAX_COUNT).try_for_each(|piece| self.broadcast(op, piece, root))
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
                Err(Error::Unsupported { backend: crate::NAME, operation, dtype: op.dtype() })
            }
        }
    }

    /// Runs a group of sends and receives.
    pub(crate) fn transfer(&mut self, ops: &[Op]) -> Result<()> {
        let Some(first) = ops.first() else { return Ok(()) };
        let sends = ops.iter().filter_map(|op| match op {
            Op::Send { src, to } => Some((to.index(), Span::of(src))),
            _ => None,
        });
        let recvs = ops.iter().filter_map(|op| match op {
            Op::Recv { dst, from } => Some((from.index(), Span::of(dst))),
            _ => None,
        });
        let (sends, recvs): (Messages, Messages) = (sends.collect(), recvs.collect());
        self.pass(first, &sends, &recvs, USER_TAG)
    }

    /// Sends and receives messages between pairs. A message to this rank itself is copied.
    fn exchange(&mut self, op: &Op, sends: Vec<Message>, recvs: Vec<Message>) -> Result<()> {
        let me = self.me();
        let own = |messages: &[Message]| messages.iter().find(|(peer, _)| *peer == me).map(|(_, span)| *span);
        if let (Some(from), Some(to)) = (own(&sends), own(&recvs)) {
            to.copy(from);
        }
        let others = |messages: Vec<Message>| messages.into_iter().filter(|(peer, _)| *peer != me).collect::<Vec<_>>();
        self.pass(op, &others(sends), &others(recvs), COLLECTIVE_TAG)
    }

    /// Starts all receives, then all sends, and waits for them.
    pub(crate) fn pass(&self, op: &Op, sends: &[Message], recvs: &[Message], tag: c_int) -> Result<()> {
        match (sends, recvs) {
            ([(peer, span)], []) if span.bytes <= MAX_COUNT => return self.send(op, *peer, *span, tag),
            ([], [(peer, span)]) if span.bytes <= MAX_COUNT => return self.recv(op, *peer, *span, tag),
            _ => {}
        }
        let (mpi, comm, byte) = (self.mpi, self.comm, self.mpi.constants.byte);
        let mut requests = SmallVec::<[A::Handle; 16]>::new();
        let mut start = |function, call: &mut dyn FnMut(&mut A::Handle) -> c_int| {
            let mut request = mpi.constants.request_null;
            mpi.about.check(function, call(&mut request)).map(|()| requests.push(request))
        };
        // An empty message is sent too.
        let pieces = |span: Span| span.pieces(MAX_COUNT).chain((span.bytes == 0).then_some(span));
        for &(peer, span) in recvs {
            for piece in pieces(span) {
                start("MPI_Irecv", &mut |request| {
                    // SAFETY: the piece is valid until the request is done, and has no other reader or writer.
                    unsafe {
                        (mpi.table.irecv)(piece.write(), piece.bytes as c_int, byte, peer as c_int, tag, comm, request)
                    }
                })?;
            }
        }
        for &(peer, span) in sends {
            for piece in pieces(span) {
                start("MPI_Isend", &mut |request| {
                    // SAFETY: the piece is valid until the request is done, and has no writer.
                    unsafe {
                        (mpi.table.isend)(piece.read(), piece.bytes as c_int, byte, peer as c_int, tag, comm, request)
                    }
                })?;
            }
        }
        let size = A::STATUS;
        let mut statuses = vec![0u64; (requests.len() * size).div_ceil(size_of::<u64>())];
        let statuses = statuses.as_mut_ptr().cast::<u8>();
        self.complete(op, &mut requests, statuses.cast())?;
        let received = recvs.iter().flat_map(|(peer, span)| pieces(*span).map(move |piece| (*peer, piece)));
        received
            .enumerate()
            .try_for_each(|(at, (peer, piece))| self.check_received(op, statuses.wrapping_add(at * size), peer, piece))
    }

    fn send(&self, op: &Op, peer: usize, span: Span, tag: c_int) -> Result<()> {
        let (from, bytes, byte) = (span.read(), span.bytes as c_int, self.mpi.constants.byte);
        call!(self, op, ["MPI_Send", "MPI_Isend"], send, isend, (from, bytes, byte, peer as c_int, tag))
    }

    fn recv(&self, op: &Op, peer: usize, span: Span, tag: c_int) -> Result<()> {
        let mut status = [0u64; 4];
        let status = status.as_mut_ptr().cast::<c_void>();
        let (to, bytes, from) = (span.write(), span.bytes as c_int, peer as c_int);
        self.run(["MPI_Recv", "MPI_Irecv"], op, status, |mpi, comm, request| {
            let byte = mpi.constants.byte;
            match request {
                // SAFETY: the memory is in a claimed tensor or in scratch memory of this rank, so it is valid and has
                // no other reader or writer until the operation ends. `status` has the size of the largest
                // `MPI_Status`.
                None => unsafe { (mpi.table.recv)(to, bytes, byte, from, tag, comm, status) },
                // SAFETY: as for the blocking call; the request is waited for below.
                Some(request) => unsafe { (mpi.table.irecv)(to, bytes, byte, from, tag, comm, request) },
            }
        })?;
        self.check_received(op, status.cast(), peer, span)
    }

    /// Checks that a message has the expected size.
    fn check_received(&self, op: &Op, status: *const u8, peer: usize, room: Span) -> Result<()> {
        let mut bytes = 0;
        // SAFETY: MPI has filled in the status.
        let code = unsafe { (self.mpi.table.get_count)(status.cast(), self.mpi.constants.byte, &mut bytes) };
        self.mpi.about.check("MPI_Get_count", code)?;
        if bytes as usize == room.bytes {
            return Ok(());
        }
        let detail = format!("rank {peer} has sent {bytes} bytes, {} bytes are expected", room.bytes);
        Err(Error::Mismatch { operation: op.kind().to_string(), detail })
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
        if block * size > MAX_COUNT {
            let mine = src.unwrap_or_else(|| dst.block(self.me(), size));
            let sends = (0..size).map(|peer| (peer, mine)).collect();
            return self.exchange(op, sends, (0..size).map(|peer| (peer, dst.block(peer, size))).collect());
        }
        // MPI wants this call in place on all ranks or on none, and a rank does not know what other ranks pass.
        if let Some(src) = src {
            dst.block(self.me(), size).copy(src);
        }
        let (from, to, bytes, byte) = (self.in_place(), dst.write(), block as c_int, self.mpi.constants.byte);
        call!(
            self,
            op,
            ["MPI_Allgather", "MPI_Iallgather"],
            allgather,
            iallgather,
            (from, bytes, byte, to, bytes, byte)
        )
    }

    /// Gathers `mine` of each rank, in rank order.
    pub(crate) fn gathered(&mut self, mine: &[u8]) -> Result<Vec<u8>> {
        let bytes = mine.len() * self.ranks();
        let mut all = Span { data: self.allocate(bytes), bytes };
        let mut own = all.block(self.me(), self.ranks());
        own.bytes_mut().copy_from_slice(mine);
        self.all_gather(&Op::Barrier, None, all)?;
        let all = all.bytes_mut().to_vec();
        self.scratch.clear();
        Ok(all)
    }

    fn gather(&mut self, op: &Op, src: Span, is_in_place: bool, dst: Span, root: usize) -> Result<()> {
        let (me, size) = (self.me(), self.ranks());
        let block = if me == root { dst.bytes / size } else { src.bytes };
        if block * size > MAX_COUNT {
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
        if block * size > MAX_COUNT {
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
        if block * size > MAX_COUNT {
            let blocks = |span: Span| (0..size).map(|peer| (peer, span.block(peer, size))).collect();
            return self.exchange(op, blocks(src), blocks(dst));
        }
        let (from, to, bytes, byte) = (src.read(), dst.write(), block as c_int, self.mpi.constants.byte);
        call!(self, op, ["MPI_Alltoall", "MPI_Ialltoall"], alltoall, ialltoall, (from, bytes, byte, to, bytes, byte))
    }

    /// A copy in scratch memory, which lasts until the operation ends.
    pub(crate) fn copied(&mut self, span: Span) -> Span {
        let copy = Span { data: self.allocate(span.bytes), bytes: span.bytes };
        copy.copy(span);
        copy
    }

    pub(crate) fn in_place(&self) -> *const c_void {
        ptr::without_provenance(self.mpi.constants.in_place)
    }
}

/// Block `index` of a span in which block `i` has `counts[i]` elements of `width` bytes.
fn uneven(span: Span, counts: &[usize], index: usize, width: usize) -> Span {
    span.part(counts[..index].iter().sum::<usize>() * width, counts[index] * width)
}
