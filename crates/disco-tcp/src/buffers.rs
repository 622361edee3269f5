//! The memory of an operation's tensors, as slices.

#![allow(unsafe_code)]

use std::slice;

use disco_core::{Op, Tensor};

/// The memory of one operation's tensors while it runs.
pub(crate) struct Buffers<'a> {
    /// What the operation reads; none in place.
    pub(crate) input: Option<&'a [u8]>,
    /// What it writes, and reads in place; none on ranks that get no result.
    pub(crate) output: Option<&'a mut [u8]>,
}

impl<'a> Buffers<'a> {
    /// The memory of an operation's tensors.
    ///
    /// # Safety
    /// The tensors are claimed for the operation while the buffers exist, and are in the memory of the host. `Op::check` has
    /// accepted the operation.
    pub(crate) unsafe fn of(op: &'a Op) -> Self {
        let is_same = |src: &Tensor, dst: &Tensor| src.data() == dst.data() && src.byte_len() > 0;
        // In place if source and destination are the same elements. Any other overlap was refused.
        let src = op.src().filter(|src| !op.dst().is_some_and(|dst| is_same(src, dst)));
        Self {
            // SAFETY: the caller has claimed the tensor, so nothing writes it, and the operation does not: it overlaps no
            // destination.
            input: src.map(|src| unsafe { slice::from_raw_parts(src.data(), src.byte_len()) }),
            // SAFETY: the caller has claimed the tensor for writing, so nothing else accesses it.
            output: op.dst().map(|dst| unsafe { slice::from_raw_parts_mut(dst.data(), dst.byte_len()) }),
        }
    }
}
