//! The memory of an operation's tensors, as slices.

#![allow(unsafe_code)]

use std::slice;

use disco_core::{Op, Tensor};

/// The memory of one operation's tensors while it runs.
pub(crate) struct Buffers<'a> {
    /// The tensor that the operation reads; none in place.
    pub(crate) input: Option<&'a [u8]>,
    /// The tensor that the operation writes, and reads in place; none on ranks without a result.
    pub(crate) output: Option<&'a mut [u8]>,
}

impl<'a> Buffers<'a> {
    /// The memory of an operation's tensors that are significant on `rank`.
    ///
    /// # Safety
    /// The tensors are claimed for the operation while the buffers exist, and are in the memory of the host. `Op::check` has
    /// accepted the operation.
    pub(crate) unsafe fn of(op: &'a Op, rank: usize) -> Self {
        let is_root = op.root().is_none_or(|root| root.index() == rank);
        let src = op.src().filter(|_| is_root || !matches!(op, Op::Broadcast { .. } | Op::Scatter { .. }));
        let dst = op.dst().filter(|_| is_root || !matches!(op, Op::Reduce { .. } | Op::Gather { .. }));
        let is_same = |src: &Tensor, dst: &Tensor| src.data() == dst.data() && src.byte_len() > 0;
        // In place if source and destination are the same elements. Any other overlap was refused.
        let src = src.filter(|src| !dst.is_some_and(|dst| is_same(src, dst)));
        Self {
            input: src.map(|src| match src.byte_len() {
                // The pointer of an empty tensor may be null.
                0 => &[][..],
                // SAFETY: the caller has claimed the tensor, so nothing writes it, and the operation does not: it overlaps no
                // destination.
                bytes => unsafe { slice::from_raw_parts(src.data(), bytes) },
            }),
            output: dst.map(|dst| match dst.byte_len() {
                0 => &mut [][..],
                // SAFETY: the caller has claimed the tensor for writing, so nothing else accesses it.
                bytes => unsafe { slice::from_raw_parts_mut(dst.data(), bytes) },
            }),
        }
    }
}
