//! Copies between host tensors and device memory, through pinned memory. For ordinary host memory the driver may block
//! until the stream has passed the copy, and so wait for peers that never come; copies of pinned memory run in stream
//! order.
//!
//! A copy is split into pieces, which use a few chunks of pinned memory in turn (a [`Rotation`]): while the stream
//! copies one piece, the host fills or empties another chunk. If the stream makes no progress, because it waits for a
//! peer, the host does not wait but allocates more chunks, and frees them once the stream is done.
//!
//! One thread fills or empties chunks at about 10 GB/s, a fraction of the rate of a link. Therefore several threads,
//! each with a rotation of its own, run a large copy ([`parallel`]). The threads start once per copy and end with it:
//! tasks of a thread pool could wait behind long tasks of the program.
//!
//! A large copy to the host is complete at its return, except for pieces that the stream has not passed because it
//! makes no progress. These pieces, and all pieces of small copies, are delivered when their chunk is used again, or by
//! [`Staging::finish_copies`].
//!
//! A stream keeps up to 4 chunks of 1 MiB for small copies, and 2 for each thread of large copies (at most 16),
//! since the allocation of a chunk takes longer than a copy of as many bytes.

#![allow(unsafe_code)]

mod chunk;
mod parallel;
mod rotation;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use disco_core::{Result, Tensor};

use self::chunk::{Chunk, Part};
use self::rotation::Rotation;
use crate::runtime::Runtime;

/// Number of chunks of copies by one thread.
const CHUNK_COUNT: usize = 4;

/// The chunks of one stream, and the running copies in them. The owner drops it only when no stream uses it.
pub(crate) struct Staging {
    /// The chunks of copies by one thread. It also has all pieces that wait for [`Staging::finish_copies`], in the order
    /// of their copies.
    rotation: Rotation,
    /// The chunks of each thread of large copies. Between two copies they have no pieces for host tensors.
    thread_rotations: Vec<Rotation>,
}

/// An address in device memory, which the host does not dereference.
#[derive(Clone, Copy)]
struct DeviceAddress(*mut u8);

// SAFETY: the host does not dereference the address.
unsafe impl Send for DeviceAddress {}
// SAFETY: the host does not dereference the address.
unsafe impl Sync for DeviceAddress {}

impl Staging {
    /// Copies from host to device. The contents of `from` are read before the return. The device is current.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Safety
    /// `to` has `from.len()` bytes on the runtime's device, and stays allocated until the stream has passed the copy.
    pub(crate) unsafe fn copy_in(&mut self, runtime: &Arc<Runtime>, to: *mut u8, from: &[u8]) -> Result<()> {
        let to = DeviceAddress(to);
        let copy_part = |chunk: &mut Chunk, part: Part| {
            let from = &from[part.offset..part.offset + part.bytes];
            // SAFETY: the caller guarantees that `to` is valid for all parts until the stream has passed them.
            unsafe { chunk.copy_in(to.at(part.offset), from, part) }
        };
        if !parallel::is_large(from.len()) {
            return self.rotation.copy(runtime, 0..from.len(), copy_part);
        }
        let rotations = parallel::rotations(&mut self.thread_rotations, self.rotation.stall_flag(), from.len());
        parallel::copy(rotations, runtime, from.len(), None, copy_part)
    }

    /// Copies from device to host. The copy is complete after [`Staging::finish_copies`]. The device is current.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Safety
    /// `from` has as many bytes as `to`, on the runtime's device, and stays allocated until the stream has passed the
    /// copy.
    pub(crate) unsafe fn copy_out(&mut self, runtime: &Arc<Runtime>, to: &Tensor, from: *const u8) -> Result<()> {
        let (bytes, from) = (to.byte_len(), DeviceAddress(from.cast_mut()));
        let copy_part = |chunk: &mut Chunk, part: Part| {
            // SAFETY: the caller guarantees that `from` is valid for all parts until the stream has passed them.
            unsafe { chunk.copy_out(to, from.at(part.offset), part) }
        };
        // Pieces of earlier copies to the same bytes must be delivered first.
        let is_parallel = parallel::is_large(bytes) && !self.rotation.has_pieces_for(to);
        // Without a claim, because the program views the tensor, all pieces are delivered later.
        let Some(claim) = is_parallel.then(|| to.storage().write().ok()).flatten() else {
            return self.rotation.copy(runtime, 0..bytes, copy_part);
        };
        let rotations = parallel::rotations(&mut self.thread_rotations, self.rotation.stall_flag(), bytes);
        let copied = parallel::copy(rotations, runtime, bytes, Some(&claim), copy_part);
        rotations.iter_mut().fold(copied, |outcome, other| outcome.and(self.rotation.take_pieces_of(other)))
    }

    /// Delivers all pieces to their host tensors. The stream is done.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy): the program views one of the tensors. All other tensors get their
    /// pieces.
    pub(crate) fn finish_copies(&mut self) -> Result<()> {
        self.thread_rotations.iter_mut().for_each(Rotation::reset);
        // SAFETY: the stream is done.
        let outcome = parallel::deliver(unsafe { self.rotation.arrived() });
        self.rotation.reset();
        outcome
    }
}

impl Default for Staging {
    fn default() -> Self {
        Self { rotation: Rotation::new(CHUNK_COUNT, Arc::new(AtomicBool::new(false))), thread_rotations: Vec::new() }
    }
}

impl DeviceAddress {
    fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}
