//! Chunks that the copies of one thread use in turn.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::tensor::Access;
use disco_core::{Result, Tensor};

use super::chunk::{Arrived, CHUNK_BYTES, Chunk, Part};
use crate::polling::POLL_INTERVAL;
use crate::runtime::Runtime;

/// The smallest rest of a chunk that a larger copy uses.
const MIN_REST_BYTES: usize = CHUNK_BYTES / 4;
/// How long the host waits for a stream without progress before it allocates another chunk.
const STALL_TIMEOUT: Duration = Duration::from_millis(20);
/// How long a wait polls without sleeps. The stream passes all chunks of a large copy in less time; longer waits are
/// for earlier work.
const SPIN_TIMEOUT: Duration = Duration::from_millis(1);

/// Chunks that are used in turn.
pub(super) struct Rotation {
    /// In the order of their use: the last chunk is in use.
    chunks: VecDeque<Chunk>,
    /// Number of chunks that are used in turn while the stream makes progress.
    count: usize,
    /// Set while the stream has made no progress since a wait of [`STALL_TIMEOUT`]. Shared by the rotations of a stream.
    is_stalled: Arc<AtomicBool>,
}

impl Rotation {
    pub(super) fn new(count: usize, is_stalled: Arc<AtomicBool>) -> Self {
        Self { chunks: VecDeque::new(), count, is_stalled }
    }

    /// The flag that all rotations of the stream share.
    pub(super) fn stall_flag(&self) -> &Arc<AtomicBool> {
        &self.is_stalled
    }

    /// Calls `copy_part` for each part of a range of a copy.
    ///
    /// # Errors
    /// Errors of the driver and of `copy_part`.
    pub(super) fn copy(
        &mut self,
        runtime: &Arc<Runtime>,
        mut range: Range<usize>,
        copy_part: impl Fn(&mut Chunk, Part) -> Result<()>,
    ) -> Result<()> {
        while !range.is_empty() {
            if self.chunks.back().is_none_or(|chunk| chunk.room() < range.len().min(MIN_REST_BYTES)) {
                self.next_chunk(runtime, None)?;
            }
            let Some(chunk) = self.chunks.back_mut() else { continue };
            let part = chunk.take(range.start, range.len());
            copy_part(chunk, part)?;
            range.start += part.bytes;
        }
        Ok(())
    }

    /// Calls `copy_part` for a range of a copy, at most a chunk, as a chunk's only part. If the chunk has pieces of an
    /// earlier part, these are delivered with the caller's `claim` of their tensor.
    ///
    /// # Errors
    /// Errors of the driver and of `copy_part`.
    pub(super) fn copy_chunk(
        &mut self,
        runtime: &Arc<Runtime>,
        range: Range<usize>,
        claim: Option<&Access>,
        copy_part: impl Fn(&mut Chunk, Part) -> Result<()>,
    ) -> Result<()> {
        self.next_chunk(runtime, claim)?;
        self.copy(runtime, range, copy_part)?;
        self.record_last()
    }

    /// Delivers the pieces of all chunks, as in [`Rotation::copy_chunk`], as long as the stream makes progress.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn drain(&mut self, claim: &Access) -> Result<()> {
        for _ in 0..self.chunks.len() {
            if !self.is_first_free(Some(claim))? {
                break;
            }
            self.chunks.rotate_left(1);
        }
        Ok(())
    }

    /// Takes over the chunks of another rotation that have pieces.
    ///
    /// # Errors
    /// Errors of the driver. The chunks are taken over nevertheless.
    pub(super) fn take_pieces_of(&mut self, other: &mut Self) -> Result<()> {
        let (with_pieces, others): (VecDeque<_>, _) =
            mem::take(&mut other.chunks).into_iter().partition(Chunk::has_pieces);
        other.chunks = others;
        // The last chunk is no longer the one in use.
        let recorded = if with_pieces.is_empty() { Ok(()) } else { self.record_last() };
        self.chunks.extend(with_pieces);
        recorded
    }

    /// Whether a piece for these bytes waits for its delivery.
    pub(super) fn has_pieces_for(&self, tensor: &Tensor) -> bool {
        self.chunks.iter().any(|chunk| chunk.has_pieces_for(tensor))
    }

    /// All pieces, in the order of their copies.
    ///
    /// # Safety
    /// The stream is done.
    pub(super) unsafe fn arrived(&self) -> Vec<Arrived<'_>> {
        // SAFETY: the caller guarantees that the stream has passed all copies.
        self.chunks.iter().flat_map(|chunk| unsafe { chunk.arrived() }).collect()
    }

    /// Makes all chunks free, and frees the chunks beyond `count`. The stream is done.
    pub(super) fn reset(&mut self) {
        self.chunks.iter_mut().for_each(Chunk::release);
        self.chunks.truncate(self.count);
        self.is_stalled.store(false, Ordering::Relaxed);
    }

    /// Makes another chunk the one in use: the least recently used one if the stream has passed it, otherwise a new
    /// one.
    fn next_chunk(&mut self, runtime: &Arc<Runtime>, claim: Option<&Access>) -> Result<()> {
        self.record_last()?;
        if self.chunks.len() >= self.count && self.is_first_free(claim)? {
            self.chunks.rotate_left(1);
        } else {
            self.chunks.push_back(Chunk::new(runtime)?);
        }
        Ok(())
    }

    /// Records the event of the last chunk, if the chunk has copies behind which it was not recorded.
    fn record_last(&mut self) -> Result<()> {
        self.chunks.back_mut().filter(|chunk| chunk.is_in_use()).map_or(Ok(()), Chunk::record)
    }

    /// Whether the least recently used chunk is free: the stream has passed it, and its pieces are delivered. Waits for
    /// the stream at most [`STALL_TIMEOUT`], and only once while the stream makes no progress.
    fn is_first_free(&mut self, claim: Option<&Access>) -> Result<bool> {
        let Some(first) = self.chunks.front_mut() else { return Ok(false) };
        if !first.is_in_use() {
            return Ok(true);
        }
        let start = Instant::now();
        while !first.is_passed()? {
            let elapsed = start.elapsed();
            if self.is_stalled.load(Ordering::Relaxed) || elapsed > STALL_TIMEOUT {
                self.is_stalled.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            if elapsed > SPIN_TIMEOUT { thread::sleep(POLL_INTERVAL) } else { thread::yield_now() }
        }
        self.is_stalled.store(false, Ordering::Relaxed);
        // SAFETY: the stream has passed all copies of the chunk. The threads that share `claim` have other pieces, which
        // are of the same copy.
        let delivered = unsafe { first.deliver(claim) };
        // A tensor that the program views gets its piece later.
        if delivered.is_ok() {
            first.release();
        }
        Ok(delivered.is_ok())
    }
}
