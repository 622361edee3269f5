//! Copies between host tensors and a stream. The driver may wait for the stream in a copy of ordinary host memory, and so for peers
//! that never come. So copies go through pinned memory, which the driver reads and writes when the stream gets there.
//!
//! A copy goes in pieces through a few chunks of pinned memory, used in turn: while the stream copies one piece, the host fills or
//! empties another chunk. If the stream does not move, because a peer holds it up, the host does not wait but takes more chunks, and
//! gives them back when the stream is done.

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

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunks that are used in turn.
const CHUNK_COUNT: usize = 4;
/// The smallest rest of a chunk that a part of a larger copy goes to.
const MIN_REST_BYTES: usize = CHUNK_BYTES / 4;
/// Where pieces start in a chunk.
const ALIGNMENT: usize = 256;
/// How long the stream may not move before the host takes another chunk.
const STALL_LIMIT: Duration = Duration::from_millis(20);

/// The chunks of one stream, and the copies that are under way in them.
#[derive(Default)]
pub(crate) struct Staging {
    /// The last is in use, the first was used longest ago.
    chunks: VecDeque<Chunk>,
    /// The stream did not move for [`STALL_LIMIT`], and has not been seen to move since.
    is_stalled: bool,
}

/// Pinned host memory, which copies take from its start on. Dropped when no stream has it.
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
    /// Where it starts in the tensor.
    offset: usize,
    /// Where it is in the chunk.
    at: usize,
    bytes: usize,
}

impl Staging {
    /// Host to device: what is read is as it is now. The context is current.
    ///
    /// # Errors
    /// The driver's own.
    ///
    /// # Safety
    /// `to` is as many bytes of the runtime's device, and stays until the stream has got there.
    pub(crate) unsafe fn copy_in(&mut self, runtime: &Arc<Runtime>, to: *mut u8, from: &[u8]) -> Result<()> {
        self.pieces(runtime, from.len(), |chunk, (offset, at, bytes)| {
            let (pinned, part) = (chunk.pinned.data().wrapping_add(at), &from[offset..offset + bytes]);
            // SAFETY: the chunk has so many bytes there, and no other copy uses them.
            unsafe { pinned.copy_from_nonoverlapping(part.as_ptr(), bytes) };
            // SAFETY: the caller's word for `to`; the chunk stays until the stream has got there.
            unsafe { runtime.driver().copy(to.wrapping_add(offset), pinned, bytes, CopyKind::ToDevice) }
        })
    }

    /// Device to host: complete after [`Staging::finish_copies`]. The context is current.
    ///
    /// # Errors
    /// The driver's own.
    ///
    /// # Safety
    /// `from` is as many bytes as `to` has, of the runtime's device, and stays until the stream has got there.
    pub(crate) unsafe fn copy_out(&mut self, runtime: &Arc<Runtime>, to: &Tensor, from: *const u8) -> Result<()> {
        self.pieces(runtime, to.byte_len(), |chunk, (offset, at, bytes)| {
            let pinned = chunk.pinned.data().wrapping_add(at);
            chunk.pending_pieces.push(Piece { tensor: to.clone(), offset, at, bytes });
            // SAFETY: the caller's word for `from`; the chunk stays until the stream has got there.
            unsafe { runtime.driver().copy(pinned, from.wrapping_add(offset), bytes, CopyKind::ToHost) }
        })
    }

    /// The stream is done: host tensors get what has come for them.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy) if somebody views one; the others get theirs.
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

    /// Whether a stream may have some of it.
    pub(crate) fn is_in_use(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.taken > 0)
    }

    /// A stream that does not end keeps it.
    pub(crate) fn forget(&mut self) {
        mem::forget(mem::take(self));
    }

    /// Does something with each piece of a copy: a chunk, where the piece starts in the copy and in the chunk, and its bytes.
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

    /// Another chunk is in use from now on: the one that was used longest ago, if the stream has passed it.
    fn next_chunk(&mut self, runtime: &Arc<Runtime>) -> Result<()> {
        if let Some(last) = self.chunks.back() {
            // SAFETY: the event is there for as long as the chunk.
            unsafe { runtime.driver().record_event(last.event) }?;
        }
        if self.chunks.len() >= CHUNK_COUNT && self.is_first_free(runtime)? {
            self.chunks.rotate_left(1);
        } else {
            self.chunks.push_back(Chunk::new(runtime)?);
        }
        Ok(())
    }

    /// Whether the chunk that was used longest ago can be used again. Waits for it for at most [`STALL_LIMIT`], once for each time that the
    /// stream stalls.
    fn is_first_free(&mut self, runtime: &Runtime) -> Result<bool> {
        let Some(first) = self.chunks.front_mut() else { return Ok(false) };
        let start = Instant::now();
        // SAFETY: the event is there for as long as the chunk, and was recorded when the next one came in use.
        while first.taken > 0 && !unsafe { runtime.driver().is_event_complete(first.event) }? {
            if self.is_stalled || start.elapsed() > STALL_LIMIT {
                self.is_stalled = true;
                return Ok(false);
            }
            thread::yield_now();
        }
        self.is_stalled = false;
        // A tensor that somebody views gets its piece later.
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

    /// The stream has passed all copies: host tensors get their pieces.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy) if somebody views one, whose pieces stay; the others get theirs.
    fn deliver(&mut self) -> Result<()> {
        let (mut outcome, data) = (Ok(()), self.pinned.data());
        self.pending_pieces.retain(|piece| {
            let copied = piece.tensor.bytes_mut().map(|mut to| {
                // SAFETY: the chunk has so many bytes there, which the stream has written.
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
        // SAFETY: it was made for this chunk, and is destroyed once.
        unsafe { self.runtime.driver().destroy_event(self.event) };
    }
}
