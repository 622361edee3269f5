//! Ranges of memory that MPI reads or writes.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use disco_core::Tensor;

/// The largest count of a call, in elements or bytes of all ranks together. Counts are C integers, and older libraries
/// compute offsets with them.
pub(crate) const MAX_COUNT: usize = 1 << 30;

/// A range of memory of this rank: inside a claimed tensor, or in scratch memory. It is valid until the operation ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) data: *mut u8,
    pub(crate) bytes: usize,
}

impl Span {
    pub(crate) const NONE: Self = Self { data: ptr::null_mut(), bytes: 0 };

    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { data: tensor.data(), bytes: tensor.byte_len() }
    }

    /// A part of the span, which the caller keeps in range.
    pub(crate) fn part(self, start: usize, bytes: usize) -> Self {
        debug_assert!(start + bytes <= self.bytes, "{start} + {bytes} of {self:?}");
        Self { data: self.data.wrapping_add(start), bytes }
    }

    pub(crate) fn block(self, index: usize, size: usize) -> Self {
        let bytes = self.bytes / size;
        self.part(index * bytes, bytes)
    }

    /// The pieces of at most `most` bytes each.
    pub(crate) fn pieces(self, most: usize) -> impl Iterator<Item = Self> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let bytes = most.min(self.bytes - start);
            let piece = self.part(start, bytes);
            start += bytes;
            (bytes > 0).then_some(piece)
        })
    }

    pub(crate) fn read(&self) -> *const c_void {
        self.data.cast_const().cast()
    }

    pub(crate) fn write(&self) -> *mut c_void {
        self.data.cast()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.bytes {
            0 => &[],
            // SAFETY: the span is valid until the operation ends, and its operation does not write to it meanwhile.
            bytes => unsafe { std::slice::from_raw_parts(self.data, bytes) },
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.bytes {
            0 => &mut [],
            // SAFETY: the span is valid until the operation ends, and has no other reader or writer meanwhile.
            bytes => unsafe { std::slice::from_raw_parts_mut(self.data, bytes) },
        }
    }

    /// Copies from a span that may overlap this one.
    pub(crate) fn copy(self, from: Self) {
        // SAFETY: both spans are valid for the smaller of the two sizes until the operation ends, and this one has no
        // other reader or writer meanwhile.
        unsafe { ptr::copy(from.data, self.data, self.bytes.min(from.bytes)) };
    }
}
