//! Peers' memory: the only unsafe code of this crate.

#![allow(unsafe_code)]

use std::ptr;

use disco_core::{Error, Result, Tensor};

use crate::group::Group;

/// The most that is copied between two looks at the failure flag.
const BLOCK: usize = 1 << 20;

/// The right of one rank to touch what is published, between two points of its [`Turn`](super::Turn). While it lives, the
/// group lists the rank as copying.
///
/// Tensors passed in are those of the round or the letter that it came with, or claimed by this rank's own turn.
pub(crate) struct Copying<'t> {
    group: &'t Group,
    rank: usize,
}

impl<'t> Copying<'t> {
    /// For [`Turn`](super::Turn) alone, which borrows itself mutably for it: it can't end the copying meanwhile.
    pub(super) fn new(group: &'t Group, rank: usize) -> Self {
        Self { group, rank }
    }

    /// Copies all bytes of `src` over those of `dst`. The very same bytes are left alone.
    pub(crate) fn copy(&self, dst: &Tensor, src: &Tensor) -> Result<()> {
        let bytes = dst.byte_len();
        self.check(src, 0, bytes)?;
        self.check(dst, 0, bytes)?;
        if dst.data() == src.data() {
            return Ok(());
        }
        for start in (0..bytes).step_by(BLOCK) {
            self.go_on()?;
            let (to, from) = (dst.data().wrapping_add(start), src.data().wrapping_add(start));
            // SAFETY: both ranges lie in contiguous host tensors (just checked) that are alive while borrowed. Their
            // owners hold claims, so nobody views them, and keep these while this rank is listed as copying. The
            // schedule gives `dst` no other reader or writer, and `src` no writer, before the next point.
            unsafe { ptr::copy(from, to, BLOCK.min(bytes - start)) };
        }
        Ok(())
    }

    /// Fills `into` with the bytes of `src` from `start` on.
    pub(crate) fn read(&self, src: &Tensor, start: usize, into: &mut [u8]) -> Result<()> {
        self.go_on()?;
        self.check(src, start, into.len())?;
        let from = src.data().wrapping_add(start);
        // SAFETY: as in `copy` for `src`; `into` is a slice of this thread's own.
        unsafe { ptr::copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Overwrites the bytes of `dst` from `start` on.
    pub(crate) fn write(&self, dst: &Tensor, start: usize, from: &[u8]) -> Result<()> {
        self.go_on()?;
        self.check(dst, start, from.len())?;
        let to = dst.data().wrapping_add(start);
        // SAFETY: as in `copy` for `dst`; `from` is a slice of this thread's own.
        unsafe { ptr::copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    fn go_on(&self) -> Result<()> {
        match self.group.has_failed() {
            false => Ok(()),
            true => self.group.lock().check(self.rank),
        }
    }

    fn check(&self, tensor: &Tensor, start: usize, bytes: usize) -> Result<()> {
        let inside = start.checked_add(bytes).is_some_and(|end| end <= tensor.byte_len());
        match inside && tensor.is_contiguous() && tensor.device().is_host() {
            true => Ok(()),
            false => Err(Error::invalid(format!("{bytes} bytes at {start} are no plain host memory of {tensor}"))),
        }
    }
}
