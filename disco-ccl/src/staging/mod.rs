//! Copies between host tensors and device memory, through pinned memory. For ordinary host memory the driver may block
//! until the stream has passed the copy, and so wait for peers that never come; copies of pinned memory run in stream
//! order.
//!
//! A copy is split into pieces, which use a few chunks of pinned memory in turn: while the stream copies one piece, the
//! host fills or empties another chunk. If the stream makes no progress, because it waits for a peer, the host does not
//! wait but allocates more chunks, and frees them once the stream is done.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem;
use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{Result, Tensor};

use crate::driver::{CopyKind, EventHandle};
use crate::pinned::Pinned;
use crate::runtime::Runtime;

/// Size of a chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Number of chunks that are used in turn.
const CHUNK_COUNT: usize = 4;
/// The smallest rest of a chunk that a larger copy uses.
const MIN_REST_BYTES: usize = CHUNK_BYTES / 4;
/// Alignment of pieces in a chunk.
const ALIGNMENT: usize = 256;
/// How long the host waits for a stream without progress before it allocates another chunk.
const STALL_TIMEOUT: Duration = Duration::from_millis(20);

/// The chunks of one stream, and the running copies in them.
#[derive(Default)]
pub(crate) struct Staging {
    /// In the order of their use: the last chunk is in use.
    chunks: VecDeque<Chunk>,
    /// Set while the stream has made no progress since a wait of [`STALL_TIMEOUT`].
    is_stalled: bool,
}

/// A chunk of pinned memory, which copies fill from its start. It is dropped only when no stream uses it.
struct Chunk {
    runtime: Arc<Runtime>,
    pinned: Pinned,
    taken: usize,
    /// Recorded behind the chunk's last copy when the next chunk comes into use.
    event: EventHandle,
    /// Pieces for host tensors, delivered once the stream has passed the event or is done.
    pending_pieces: Vec<Piece>,
}

/// A part of a host tensor.
struct Piece {
    tensor: Tensor,
    /// Offset in the tensor.
    offset: usize,
    /// Offset in the chunk.
    at: usize,
    bytes: usize,
}

impl Staging {
    /// Copies from host to device. The contents of `from` are read before the return. The device is current.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Safety
    /// `to` has `from.len()` bytes on the runtime's device, and stays allocated until the stream has passed the copy.
    pub(crate) unsafe fn copy_in(&mut self, runtime: &Arc<Runtime>, to: *mut u8, from: &[u8]) -> Result<()> {
        self.pieces(runtime, from.len(), |chunk, (offset, at, bytes)| {
            let (pinned, part) = (chunk.pinned.data().wrapping_add(at), &from[offset..offset + bytes]);
            // SAFETY: the chunk has `bytes` bytes at this offset, and no other copy uses them.
            unsafe { pinned.copy_from_nonoverlapping(part.as_ptr(), bytes) };
            // SAFETY: the caller guarantees that `to` is valid for the copy. The chunk is kept until the stream has
            // passed the copy.
            unsafe { runtime.driver().copy(to.wrapping_add(offset), pinned, bytes, CopyKind::ToDevice) }
        })
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
        self.pieces(runtime, to.byte_len(), |chunk, (offset, at, bytes)| {
            let pinned = chunk.pinned.data().wrapping_add(at);
            chunk.pending_pieces.push(Piece { tensor: to.clone(), offset, at, bytes });
            // SAFETY: the caller guarantees that `from` is valid for the copy. The chunk is kept until the stream has
            // passed the copy.
            unsafe { runtime.driver().copy(pinned, from.wrapping_add(offset), bytes, CopyKind::ToHost) }
        })
    }

    /// Delivers all pieces to their host tensors. The stream is done.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy): the program views one of the tensors. All other tensors get their
    /// pieces.
    pub(crate) fn finish_copies(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for chunk in &mut self.chunks {
            outcome = outcome.and(chunk.deliver());
            chunk.pending_pieces.clear();
            chunk.taken = 0;
        }
        self.chunks.truncate(CHUNK_COUNT);
        self.is_stalled = false;
        outcome
    }

    /// Whether the stream may use any chunk.
    pub(crate) fn is_in_use(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.taken > 0)
    }

    /// Leaks all chunks, because work of the stream does not end.
    pub(crate) fn forget(&mut self) {
        mem::forget(mem::take(self));
    }

    /// Calls `copy_piece` for each piece of a copy, with the chunk and (offset in the copy, offset in the chunk,
    /// bytes).
    fn pieces(
        &mut self,
        runtime: &Arc<Runtime>,
        all: usize,
        mut copy_piece: impl FnMut(&mut Chunk, (usize, usize, usize)) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < all {
            let left = all - done;
            let room = |chunk: &Chunk| CHUNK_BYTES - chunk.taken;
            if self.chunks.back().is_none_or(|chunk| room(chunk) < left.min(MIN_REST_BYTES)) {
                self.next_chunk(runtime)?;
            }
            let Some(chunk) = self.chunks.back_mut() else { continue };
            let (at, bytes) = (chunk.taken, left.min(room(chunk)));
            chunk.taken = (at + bytes).next_multiple_of(ALIGNMENT);
            copy_piece(chunk, (done, at, bytes))?;
            done += bytes;
        }
        Ok(())
    }

    /// Makes another chunk the one in use: the least recently used one if the stream has passed it, otherwise a new
    /// one.
    fn next_chunk(&mut self, runtime: &Arc<Runtime>) -> Result<()> {
        if let Some(last) = self.chunks.back() {
            // SAFETY: the event lives as long as its chunk.
            unsafe { runtime.driver().record_event(last.event) }?;
        }
        if self.chunks.len() >= CHUNK_COUNT && self.is_first_free(runtime)? {
            self.chunks.rotate_left(1);
        } else {
            self.chunks.push_back(Chunk::new(runtime)?);
        }
        Ok(())
    }

    /// Whether the least recently used chunk can be reused. Waits for it at most [`STALL_TIMEOUT`], and only once while
    /// the stream makes no progress.
    fn is_first_free(&mut self, runtime: &Runtime) -> Result<bool> {
        let Some(first) = self.chunks.front_mut() else { return Ok(false) };
        let start = Instant::now();
        // SAFETY: the event lives as long as its chunk, and was recorded when the next chunk came into use.
        while first.taken > 0 && !unsafe { runtime.driver().is_event_complete(first.event) }? {
            if self.is_stalled || start.elapsed() > STALL_TIMEOUT {
                self.is_stalled = true;
                return Ok(false);
            }
            thread::yield_now();
        }
        self.is_stalled = false;
        // A tensor that the program views gets its piece later.
        let is_free = first.deliver().is_ok();
        if is_free {
            first.taken = 0;
        }
        Ok(is_free)
    }
}

impl Chunk {
    fn new(runtime: &Arc<Runtime>) -> Result<Self> {
        let pinned = Pinned::new(runtime, CHUNK_BYTES)?;
        let (runtime, event) = (runtime.clone(), runtime.driver().create_event()?);
        Ok(Self { runtime, pinned, taken: 0, event, pending_pieces: Vec::new() })
    }

    /// Delivers the chunk's pieces to their host tensors. The stream has passed all copies of the chunk.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy): the program views one of the tensors, whose pieces stay. All other
    /// tensors get their pieces.
    fn deliver(&mut self) -> Result<()> {
        let (mut outcome, data) = (Ok(()), self.pinned.data());
        self.pending_pieces.retain(|piece| {
            let copied = piece.tensor.bytes_mut().map(|mut to| {
                // SAFETY: the chunk has `bytes` bytes at this offset, which the stream has written.
                let from = unsafe { slice::from_raw_parts(data.wrapping_add(piece.at), piece.bytes) };
                to[piece.offset..piece.offset + piece.bytes].copy_from_slice(from);
            });
            let is_busy = copied.is_err();
            if outcome.is_ok() {
                outcome = copied;
            }
            is_busy
        });
        outcome
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the event was created for this chunk, and is destroyed once.
        unsafe { self.runtime.driver().destroy_event(self.event) };
    }
}
