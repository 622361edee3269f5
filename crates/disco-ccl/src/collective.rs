//! Operations mapped to calls of the library.
//!
//! Operations that only move elements move them as bytes, so they work for every dtype. If the library has no function
//! for an operation, the operation is composed of sends and receives in one group.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use disco_core::{DType, Op, Reduction, Tensor};
use smallvec::SmallVec;

use crate::abi::{Code, Comm, DataType, RedOp, Stream};
use crate::table::Table;

/// Bytes of each block of the kernel with which NCCL scales the elements of a single rank.
const WHOLE_BYTES: usize = 16 << 10;

/// Makes the calls of one group. After a call that fails, later calls are skipped.
pub(crate) struct Calls<'a> {
    pub(crate) table: &'a Table,
    pub(crate) comm: Comm,
    pub(crate) stream: Stream,
    pub(crate) me: usize,
    pub(crate) ranks: usize,
    /// Scratch memory: copies of inputs that the library does not accept in place, and the element that a barrier
    /// reduces.
    pub(crate) scratch: *mut u8,
    /// Replaces the operations' own reduction, if set.
    pub(crate) redop: Option<RedOp>,
    /// The first call that failed; otherwise the last call.
    pub(crate) outcome: Outcome,
}

/// A function of the library, and the code that it returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) function: &'static str,
    pub(crate) code: Code,
}

/// A range of device memory.
#[derive(Clone, Copy)]
struct Span {
    data: *mut u8,
    bytes: usize,
}

/// Calls a function of the table, unless an earlier call has failed.
macro_rules! call {
    ($self:ident, $name:expr, $function:expr, $($arg:expr),*) => {
        if $self.outcome.is_good() {
            let (function, comm, stream) = ($function, $self.comm, $self.stream);
            // SAFETY: `SharedComm` keeps the communicator alive during the call. The spans belong to tensors on its
            // device, and the checks of `op` have compared their element counts with the arguments. `Runtime::alloc`
            // frees their memory in stream order.
            let code = unsafe { function($($arg,)* comm, stream) };
            $self.outcome.add($name, code);
        }
    };
}

impl Outcome {
    /// No call yet.
    pub(crate) const NONE: Self = Self { function: "", code: Code::SUCCESS };

    pub(crate) fn is_good(self) -> bool {
        matches!(self.code, Code::SUCCESS | Code::IN_PROGRESS)
    }

    pub(crate) fn add(&mut self, function: &'static str, code: Code) {
        if self.code == Code::SUCCESS || (self.is_good() && code != Code::SUCCESS) {
            *self = Self { function, code };
        }
    }
}

/// Bytes of scratch memory that an operation needs: see [`Calls::scratch`].
pub(crate) fn scratch(op: &Op) -> usize {
    match op {
        Op::AllToAll { src: None, dst } | Op::AllToAllV { src: None, dst, .. } => dst.byte_len(),
        Op::Barrier => 1,
        _ => 0,
    }
}

/// Whether an operation takes several calls, which must be in one group.
pub(crate) fn is_composed(table: &Table, op: &Op) -> bool {
    match op {
        Op::AllGatherV { .. } => true,
        Op::AllToAllV { .. } => table.all_to_all_v.is_none(),
        Op::AllToAll { .. } => table.all_to_all.or(table.all_to_all_rccl).is_none(),
        Op::Gather { .. } => table.gather.is_none(),
        Op::Scatter { .. } => table.scatter.is_none(),
        _ => false,
    }
}

/// The copy that the stream makes after an operation, if there is one: destination, source and bytes.
pub(crate) fn copy_after(op: &Op, me: usize, ranks: usize) -> Option<(*mut u8, *const u8, usize)> {
    match op {
        // In place, the library writes the result at this rank's block, and Disco's contract wants it at the start of
        // the tensor.
        Op::ReduceScatter { src: None, dst, .. } if me > 0 && dst.elements() > 0 => {
            let all = Span::of(dst);
            let own = all.block(me, ranks);
            Some((all.data, own.data, own.bytes))
        }
        _ => None,
    }
}

impl Calls<'_> {
    /// Makes the calls of one operation.
    pub(crate) fn run(&mut self, op: &Op) {
        match op {
            Op::AllReduce { src, dst, reduction } => self.all_reduce(src.as_ref(), dst, *reduction),
            Op::Reduce { src, dst, reduction, root } => {
                self.reduce(src.as_ref(), dst.as_ref(), *reduction, root.index());
            }
            Op::ReduceScatter { src, dst, reduction } => self.reduce_scatter(src.as_ref(), dst, *reduction),
            Op::AllGather { src, dst } => {
                let all = Span::of(dst);
                let own = src.as_ref().map_or_else(|| all.block(self.me, self.ranks), Span::of);
                let function = self.table.all_gather;
                call!(self, "ncclAllGather", function, own.input(), all.output(), own.bytes, DataType::U8);
            }
            Op::Broadcast { src, dst, root } => {
                let (all, root) = (Span::of(dst), root.index() as c_int);
                let from = src.as_ref().map_or(all, Span::of);
                let function = self.table.broadcast;
                call!(self, "ncclBroadcast", function, from.input(), all.output(), all.bytes, DataType::U8, root);
            }
            Op::Gather { src, dst, root } => self.gather(src.as_ref(), dst.as_ref(), root.index()),
            Op::Scatter { src, dst, root } => self.scatter(src.as_ref(), dst.as_ref(), root.index()),
            Op::AllToAll { src, dst } => self.all_to_all(src.as_ref(), dst),
            Op::AllGatherV { src, dst, counts } => self.all_gather_v(src.as_ref(), dst, counts),
            Op::AllToAllV { src, send_counts, dst, recv_counts } => {
                self.all_to_all_v((src.as_ref(), send_counts), (dst, recv_counts));
            }
            Op::Send { src, to } => self.send(Span::of(src), to.index()),
            Op::Recv { dst, from } => self.recv(Span::of(dst), from.index()),
            Op::Barrier => {
                let one = Span { data: self.scratch, bytes: 1 };
                let function = self.table.all_reduce;
                call!(self, "ncclAllReduce", function, one.input(), one.output(), 1, DataType::U8, RedOp::MAX);
            }
            // Unreachable: `capabilities` excludes operations that this match does not have.
            _ => self.outcome.add("(no function)", Code::INVALID_ARGUMENT),
        }
    }

    fn all_reduce(&mut self, src: Option<&Tensor>, dst: &Tensor, reduction: Reduction) {
        let Some((dtype, redop)) = self.reduction(dst.dtype(), reduction) else { return };
        let (from, to) = (Span::of(src.unwrap_or(dst)), Span::of(dst));
        let function = self.table.all_reduce;
        call!(self, "ncclAllReduce", function, from.input(), to.output(), dst.elements(), dtype, redop);
    }

    fn reduce(&mut self, src: Option<&Tensor>, dst: Option<&Tensor>, reduction: Reduction, root: usize) {
        let dst = dst.filter(|_| self.me == root);
        let Some(input) = src.or(dst) else { return };
        let Some((dtype, redop)) = self.reduction(input.dtype(), reduction) else { return };
        let (from, to) = (Span::of(input), dst.map_or(ptr::null_mut(), |dst| Span::of(dst).output()));
        let (function, root) = (self.table.reduce, root as c_int);
        call!(self, "ncclReduce", function, from.input(), to, input.elements(), dtype, redop, root);
    }

    fn reduce_scatter(&mut self, src: Option<&Tensor>, dst: &Tensor, reduction: Reduction) {
        let Some((dtype, redop)) = self.reduction(dst.dtype(), reduction) else { return };
        let (from, to) = match src {
            Some(src) => (Span::of(src), Span::of(dst)),
            // The library's in-place form writes to this rank's block. `copy_after` moves the result to the start.
            None => (Span::of(dst), Span::of(dst).block(self.me, self.ranks)),
        };
        let (function, count) = (self.table.reduce_scatter, to.bytes / dst.dtype().size());
        call!(self, "ncclReduceScatter", function, from.input(), to.output(), count, dtype, redop);
    }

    /// Multiplies the elements of a reduction of one rank by the factor of `redop`, in two calls: NCCL 2.28.9 leaves out
    /// the last elements of more than [`WHOLE_BYTES`], unless the size is a multiple of that.
    pub(crate) fn scale_alone(&mut self, op: &Op, dtype: DType) {
        let Some((code, redop)) = self.reduction(dtype, Reduction::Sum) else { return };
        let Some((src, dst)) = op.src().or(op.dst()).zip(op.dst()) else { return };
        let (from, to) = (Span::of(src), Span::of(dst));
        let whole = from.bytes - from.bytes % WHOLE_BYTES;
        let function = self.table.all_reduce;
        for (start, end) in [(0, whole), (whole, from.bytes)].into_iter().filter(|(start, end)| start < end) {
            let [from, to] = [from, to].map(|all| Span { data: all.data.wrapping_add(start), bytes: end - start });
            let count = from.bytes / dtype.size();
            call!(self, "ncclAllReduce", function, from.input(), to.output(), count, code, redop);
        }
    }

    fn gather(&mut self, src: Option<&Tensor>, dst: Option<&Tensor>, root: usize) {
        let all = dst.filter(|_| self.me == root).map(Span::of);
        let block = all.map(|all| all.block(root, self.ranks));
        let Some(own) = src.map(Span::of).or(block) else { return };
        if let Some(function) = self.table.gather {
            let (to, root) = (all.map_or(ptr::null_mut(), Span::output), root as c_int);
            call!(self, "ncclGather", function, own.input(), to, own.bytes, DataType::U8, root);
            return;
        }
        if src.is_some() {
            self.send(own, root);
        }
        if let Some(all) = all {
            let is_there = |peer: usize| peer == root && src.is_none();
            (0..self.ranks)
                .filter(|peer| !is_there(*peer))
                .for_each(|peer| self.recv(all.block(peer, self.ranks), peer));
        }
    }

    fn scatter(&mut self, src: Option<&Tensor>, dst: Option<&Tensor>, root: usize) {
        let all = src.filter(|_| self.me == root).map(Span::of);
        let block = all.map(|all| all.block(root, self.ranks));
        let Some(own) = dst.map(Span::of).or(block) else { return };
        if let Some(function) = self.table.scatter {
            let (from, root) = (all.map_or(ptr::null(), Span::input), root as c_int);
            call!(self, "ncclScatter", function, from, own.output(), own.bytes, DataType::U8, root);
            return;
        }
        if let Some(all) = all {
            let is_there = |peer: usize| peer == root && dst.is_none();
            (0..self.ranks)
                .filter(|peer| !is_there(*peer))
                .for_each(|peer| self.send(all.block(peer, self.ranks), peer));
        }
        if dst.is_some() {
            self.recv(own, root);
        }
    }

    fn all_to_all(&mut self, src: Option<&Tensor>, dst: &Tensor) {
        let to = Span::of(dst);
        let from = src.map_or(Span { data: self.scratch, ..to }, Span::of);
        match self.table.all_to_all.or(self.table.all_to_all_rccl) {
            Some(function) => {
                let bytes = to.bytes / self.ranks;
                call!(self, "ncclAlltoAll", function, from.input(), to.output(), bytes, DataType::U8);
            }
            None => (0..self.ranks).for_each(|peer| {
                self.send(from.block(peer, self.ranks), peer);
                self.recv(to.block(peer, self.ranks), peer);
            }),
        }
    }

    fn all_gather_v(&mut self, src: Option<&Tensor>, dst: &Tensor, counts: &[usize]) {
        let place = |peer: usize| Span::of(dst).range_of(counts, peer, dst.dtype());
        let own = src.map_or_else(|| place(self.me), Span::of);
        let me = self.me;
        for peer in (0..self.ranks).filter(|peer| *peer != me || src.is_some()) {
            self.send(own, peer);
            self.recv(place(peer), peer);
        }
    }

    fn all_to_all_v(&mut self, send: (Option<&Tensor>, &[usize]), recv: (&Tensor, &[usize])) {
        let (to, dtype) = (Span::of(recv.0), recv.0.dtype());
        let from = send.0.map_or(Span { data: self.scratch, ..to }, Span::of);
        if let Some(function) = self.table.all_to_all_v {
            let ((sizes, starts), (to_sizes, to_starts)) = (in_bytes(send.1, dtype), in_bytes(recv.1, dtype));
            let (sizes, starts, to_sizes, to_starts) =
                (sizes.as_ptr(), starts.as_ptr(), to_sizes.as_ptr(), to_starts.as_ptr());
            let name = "ncclAllToAllv";
            call!(self, name, function, from.input(), sizes, starts, to.output(), to_sizes, to_starts, DataType::U8);
            return;
        }
        for peer in 0..self.ranks {
            self.send(from.range_of(send.1, peer, dtype), peer);
            self.recv(to.range_of(recv.1, peer, dtype), peer);
        }
    }

    /// Sends bytes, unless there are none: a receive of zero bytes is skipped, too.
    fn send(&mut self, from: Span, to: usize) {
        if from.bytes > 0 {
            let function = self.table.send;
            call!(self, "ncclSend", function, from.input(), from.bytes, DataType::U8, to as c_int);
        }
    }

    fn recv(&mut self, to: Span, from: usize) {
        if to.bytes > 0 {
            let function = self.table.recv;
            call!(self, "ncclRecv", function, to.output(), to.bytes, DataType::U8, from as c_int);
        }
    }

    /// The arguments for a reduction. On one rank an average is the sum, which is a copy there: for averages of floats,
    /// the library has a kernel that refuses 8-bit floats and, in NCCL 2.28.9, leaves out the last elements.
    fn reduction(&mut self, dtype: DType, reduction: Reduction) -> Option<(DataType, RedOp)> {
        let reduction = match reduction {
            Reduction::Avg if self.ranks == 1 && dtype != DType::Bool => Reduction::Sum,
            reduction => reduction,
        };
        let found = DataType::of(dtype).zip(self.redop.or_else(|| RedOp::of(reduction, dtype)));
        if found.is_none() {
            // Unreachable: `capabilities` excludes reductions that the library lacks.
            self.outcome.add("(no reduction)", Code::INVALID_ARGUMENT);
        }
        found
    }
}

/// Converts element counts of all ranks to sizes and offsets in bytes.
fn in_bytes(counts: &[usize], dtype: DType) -> (Bytes, Bytes) {
    let sizes: Bytes = counts.iter().map(|count| count * dtype.size()).collect();
    let starts = sizes.iter().scan(0, |end, size| {
        *end += size;
        Some(*end - size)
    });
    let starts = starts.collect();
    (sizes, starts)
}

/// Up to 16 ranks need no heap allocation.
type Bytes = SmallVec<[usize; 16]>;

impl Span {
    fn of(tensor: &Tensor) -> Self {
        Self { data: tensor.data(), bytes: tensor.byte_len() }
    }

    /// Block `index` of `blocks` equal blocks.
    fn block(self, index: usize, blocks: usize) -> Self {
        let bytes = self.bytes / blocks;
        Self { data: self.data.wrapping_add(index * bytes), bytes }
    }

    /// The range of rank `index`, if the ranges of all ranks, of `counts` elements each, follow each other.
    fn range_of(self, counts: &[usize], index: usize, dtype: DType) -> Self {
        let start: usize = counts[..index].iter().sum();
        Self { data: self.data.wrapping_add(start * dtype.size()), bytes: counts[index] * dtype.size() }
    }

    fn input(self) -> *const c_void {
        self.data.cast_const().cast()
    }

    fn output(self) -> *mut c_void {
        self.data.cast()
    }
}

/// Whether two operations of a group may be in one group of the library, which has no order.
///
/// All ranks must decide alike, and a rank sees only its own tensors. So only all-reduces, all-gathers and reduce-scatters
/// share groups: rooted operations have other tensors at the root, and the others may need scratch memory on some ranks only.
pub(crate) fn is_independent(earlier: &Op, later: &Op) -> bool {
    if earlier.kind().is_point_to_point() {
        return true;
    }
    let is_alike = |op| matches!(op, &Op::AllReduce { .. } | &Op::AllGather { .. } | &Op::ReduceScatter { .. });
    let meet = |a: Option<&Tensor>, b: Option<&Tensor>| a.zip(b).is_some_and(|(a, b)| a.overlaps(b));
    let writes =
        meet(earlier.dst(), later.dst()) || meet(earlier.dst(), later.src()) || meet(earlier.src(), later.dst());
    is_alike(earlier) && is_alike(later) && !writes
}
