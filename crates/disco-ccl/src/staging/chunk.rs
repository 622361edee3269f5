//! A chunk of pinned memory, with parts of copies.

#![allow(unsafe_code)]

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use disco_core::tensor::Access;
use disco_core::{Result, Tensor};

use crate::driver::CopyKind;
use crate::event::OwnedEvent;
use crate::pinned::Pinned;
use crate::runtime::Runtime;

/// Size of a chunk.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// Alignment of parts in a chunk.
const ALIGNMENT: usize = 256;

/// A chunk of pinned memory, which copies fill from its start. It is dropped only when no stream uses it.
pub(super) struct Chunk {
    runtime: Arc<Runtime>,
    pinned: Pinned,
    taken: usize,
    /// Recorded behind the chunk's last copy.
    event: OwnedEvent,
    /// Pieces for host tensors, delivered once the stream has passed the event or is done.
    pending_pieces: Vec<Piece>,
}

/// A part of a copy, in a chunk.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Offset in the copy.
    pub(super) offset: usize,
    /// Offset in the chunk.
    at: usize,
    pub(super) bytes: usize,
}

/// A part of a copy to a host tensor.
struct Piece {
    tensor: Tensor,
    part: Part,
}

/// A piece whose contents are in the chunk.
pub(super) struct Arrived<'a> {
    pub(super) tensor: &'a Tensor,
    /// Offset in the tensor.
    pub(super) offset: usize,
    pub(super) contents: &'a [u8],
}

impl Chunk {
    pub(super) fn new(runtime: &Arc<Runtime>) -> Result<Self> {
        let pinned = Pinned::new(runtime, CHUNK_BYTES)?;
        let event = OwnedEvent::new(runtime)?;
        Ok(Self { runtime: runtime.clone(), pinned, taken: 0, event, pending_pieces: Vec::new() })
    }

    /// Number of bytes that are not taken.
    pub(super) fn room(&self) -> usize {
        CHUNK_BYTES - self.taken
    }

    /// Whether the stream may use the chunk.
    pub(super) fn is_in_use(&self) -> bool {
        self.taken > 0
    }

    /// Takes room for the part of a copy from `offset` on: `bytes`, or as many as there is room for.
    pub(super) fn take(&mut self, offset: usize, bytes: usize) -> Part {
        let part = Part { offset, at: self.taken, bytes: bytes.min(self.room()) };
        self.taken = (part.at + part.bytes).next_multiple_of(ALIGNMENT);
        self.event.reset();
        part
    }

    /// Makes all room free. Drops the pieces.
    pub(super) fn release(&mut self) {
        self.pending_pieces.clear();
        self.taken = 0;
    }

    /// Copies a part of a copy to the device.
    ///
    /// # Safety
    /// `part` is from [`Chunk::take`] of this chunk, and `to` has `from.len()` bytes, as many as the part, on the
    /// device. `to` stays allocated until the stream has passed the copy.
    pub(super) unsafe fn copy_in(&mut self, to: *mut u8, from: &[u8], part: Part) -> Result<()> {
        let pinned = self.address(part);
        // SAFETY: the chunk has `part.bytes` bytes at this address, and no other copy uses them.
        unsafe { pinned.copy_from_nonoverlapping(from.as_ptr(), part.bytes) };
        // SAFETY: the caller guarantees that `to` is valid for the copy. The chunk is kept until the stream has passed
        // the copy.
        unsafe { self.runtime.driver().copy(to, pinned, part.bytes, CopyKind::ToDevice) }
    }

    /// Copies a part of a copy from the device. [`Chunk::deliver`] delivers it to the tensor.
    ///
    /// # Safety
    /// `part` is from [`Chunk::take`] of this chunk and inside of the host tensor `tensor`, and `from` has as many bytes
    /// on the device. `from` stays allocated until the stream has passed the copy.
    pub(super) unsafe fn copy_out(&mut self, tensor: &Tensor, from: *const u8, part: Part) -> Result<()> {
        // SAFETY: the caller guarantees that `from` is valid for the copy. The chunk is kept until the stream has passed
        // the copy, which alone uses these bytes of the chunk.
        unsafe { self.runtime.driver().copy(self.address(part), from, part.bytes, CopyKind::ToHost) }?;
        self.pending_pieces.push(Piece { tensor: tensor.clone(), part });
        Ok(())
    }

    /// Records the event behind the chunk's last copy, if it is not recorded.
    pub(super) fn record(&mut self) -> Result<()> {
        if self.event.is_recorded() { Ok(()) } else { self.event.record() }
    }

    /// Whether the stream has passed all copies of the chunk; false if the event is not recorded.
    pub(super) fn is_passed(&self) -> Result<bool> {
        self.event.is_passed()
    }

    /// Whether any piece waits for its delivery.
    pub(super) fn has_pieces(&self) -> bool {
        !self.pending_pieces.is_empty()
    }

    /// Whether a piece for these bytes waits for its delivery.
    pub(super) fn has_pieces_for(&self, tensor: &Tensor) -> bool {
        self.pending_pieces.iter().any(|piece| piece.tensor.overlaps(tensor))
    }

    /// Delivers the chunk's pieces to their host tensors. `claim` is a claim for writing that the caller has; pieces for
    /// another storage are delivered if this storage can be claimed.
    ///
    /// # Errors
    /// [`Error::Busy`](disco_core::Error::Busy): the program views one of the tensors, whose pieces stay. All other
    /// tensors get their pieces.
    ///
    /// # Safety
    /// The stream has passed all copies of the chunk. No other thread accesses the bytes of its pieces by `claim`.
    pub(super) unsafe fn deliver(&mut self, claim: Option<&Access>) -> Result<()> {
        let (mut outcome, pinned) = (Ok(()), &self.pinned);
        self.pending_pieces.retain(|piece| {
            let storage = piece.tensor.storage();
            let is_claimed = claim.is_some_and(|claim| Arc::ptr_eq(claim.storage(), storage));
            // Held during the delivery.
            let _own_claim = match (!is_claimed).then(|| storage.write()).transpose() {
                Ok(own_claim) => own_claim,
                Err(busy) => {
                    outcome = Err(busy);
                    return true;
                }
            };
            // SAFETY: the caller guarantees that the stream has passed the copy.
            let arrived = unsafe { piece.arrived(pinned) };
            // SAFETY: the storage is claimed, here or by the caller, who guarantees that no other thread accesses these
            // bytes.
            unsafe { arrived.deliver(0..arrived.contents.len()) };
            false
        });
        outcome
    }

    /// All pieces.
    ///
    /// # Safety
    /// The stream has passed all copies of the chunk.
    pub(super) unsafe fn arrived(&self) -> impl Iterator<Item = Arrived<'_>> {
        // SAFETY: the caller guarantees that the stream has passed the copies.
        self.pending_pieces.iter().map(|piece| unsafe { piece.arrived(&self.pinned) })
    }

    fn address(&self, part: Part) -> *mut u8 {
        self.pinned.data().wrapping_add(part.at)
    }
}

impl Piece {
    /// # Safety
    /// The stream has passed the copy of this piece to its chunk, whose memory is `pinned`.
    unsafe fn arrived<'a>(&'a self, pinned: &'a Pinned) -> Arrived<'a> {
        let data = pinned.data().wrapping_add(self.part.at);
        // SAFETY: the memory has this number of bytes at this address, the stream has written them, and they are written
        // again only after the piece is removed.
        let contents = unsafe { slice::from_raw_parts(data, self.part.bytes) };
        Arrived { tensor: &self.tensor, offset: self.part.offset, contents }
    }
}

impl Arrived<'_> {
    /// Number of bytes.
    pub(super) fn byte_len(&self) -> usize {
        self.contents.len()
    }

    /// The address of the first byte in the tensor's memory.
    pub(super) fn to(&self) -> *mut u8 {
        self.tensor.data().wrapping_add(self.offset)
    }

    /// Copies a range of the contents to the tensor.
    ///
    /// # Safety
    /// The caller has claimed the tensor's storage for writing, and no other thread accesses these bytes of it.
    pub(super) unsafe fn deliver(&self, range: Range<usize>) {
        let (to, contents) = (self.to().wrapping_add(range.start), &self.contents[range]);
        // SAFETY: the piece is inside of its tensor, in other memory than the chunk, and the caller guarantees that only
        // this thread accesses these bytes.
        unsafe { to.copy_from_nonoverlapping(contents.as_ptr(), contents.len()) };
    }
}
