//! Batches frames for all peers into one write. Not used by lanes with a ring.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::shared_memory::Snapshot;
use disco_core::wire::{self, Pieces, Transfer, Writer};
use disco_core::{Frame, Result};

use crate::limits::CHUNK_BYTES;

/// Linger time per peer of frames for whose replies no caller waits.
const LINGER_PER_PEER: Duration = Duration::from_micros(50);
/// Least linger time.
const MIN_LINGER: Duration = Duration::from_micros(100);
/// Size at which a batch is sent at once.
pub const FULL_BATCH_BYTES: usize = 16 << 10;

/// Frames that were not sent yet.
#[derive(Debug)]
pub(super) struct Batch {
    linger_time: Duration,
    packets: Writer,
    /// Number of frames, and their bytes without packet headers.
    frames: u64,
    bytes: usize,
    /// When frames were sent last.
    sent: Option<Instant>,
    /// When lingering frames are sent. Stays set while frames keep coming, so that not each frame sets a new timer.
    deadline: Option<Instant>,
}

/// Encoded frames, ready to be sent.
#[derive(Clone, Debug)]
pub struct Load {
    pub(super) packets: Arc<[u8]>,
    pub(super) frames: u64,
    /// Bytes that count as credit, including those of the snapshot or the transfer.
    pub(super) bytes: usize,
    /// Large tensors of a single frame, in shared memory.
    pub(super) snapshot: Option<Arc<Snapshot>>,
    /// A single large packet, in place of `packets`.
    pub(super) pieces: Option<Arc<Pieces>>,
    /// The transfer that has carried the large tensors of a single frame.
    pub(super) transfer: Option<Arc<Transfer>>,
}

impl Batch {
    /// Makes an empty batch; the linger time grows with `peers`.
    pub(super) fn new(peers: usize) -> Self {
        let linger_time = (LINGER_PER_PEER * u32::try_from(peers).unwrap_or(u32::MAX)).max(MIN_LINGER);
        Self { linger_time, packets: Writer::default(), frames: 0, bytes: 0, sent: None, deadline: None }
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// A value that can't leave the process.
    pub(super) fn add(&mut self, frame: &Frame) -> Result<()> {
        let bytes = frame.bytes()?;
        wire::write_frame(frame.seq(), bytes, None, &mut self.packets)?;
        self.frames += 1;
        self.bytes += bytes.len();
        Ok(())
    }

    /// Whether a frame may join the batch, which stays small enough not to be sent in parts.
    pub(super) fn has_place_for(&self, frame: &Frame) -> Result<bool> {
        Ok(self.frames == 0 || frame.bytes()?.len() < FULL_BATCH_BYTES)
    }

    /// Whether to send the batch now: no frame was sent within the linger time, or the batch is full.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.bytes >= FULL_BATCH_BYTES
            || self.sent.is_none_or(|sent| now.saturating_duration_since(sent) >= self.linger_time)
    }

    /// Lets the batch linger. Returns whether this sets a new deadline, for which the reactor must be woken.
    #[must_use]
    pub(super) fn linger(&mut self, now: Instant) -> bool {
        let is_new = self.deadline.is_none();
        self.deadline = self.deadline.or(now.checked_add(self.linger_time));
        is_new
    }

    /// When lingering frames are sent.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Takes the frames if the deadline has passed. An empty batch clears the deadline.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Load> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return None;
        }
        let load = self.take(now);
        self.deadline = load.as_ref().and_then(|_| now.checked_add(self.linger_time));
        load
    }

    /// Records that frames were sent past the batch.
    pub(super) fn note_sent(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    /// Number of frames in the batch, and their bytes.
    pub(super) fn size(&self) -> (u64, usize) {
        (self.frames, self.bytes)
    }

    /// Takes all frames.
    pub(super) fn take(&mut self, now: Instant) -> Option<Load> {
        if self.frames == 0 {
            return None;
        }
        self.sent = Some(now);
        let (frames, bytes) = (std::mem::take(&mut self.frames), std::mem::take(&mut self.bytes));
        let packets = self.packets.take();
        debug_assert!(frames == 1 || packets.len() <= CHUNK_BYTES, "a batch is too small to be sent in parts");
        Some(Load { packets, frames, bytes, snapshot: None, pieces: None, transfer: None })
    }
}

/// Encodes a frame whose large tensors were sent ahead. `None` if the frame has no transfer.
///
/// # Errors
/// A value that can't leave the process.
pub fn pack_after(frame: &Frame) -> Result<Option<Load>> {
    let Some(transfer) = frame.transfer() else { return Ok(None) };
    let bytes = frame.bytes_without_tensors()?;
    let mut packets = Writer::default();
    wire::write_frame(frame.seq(), &bytes, Some(transfer.id()), &mut packets)?;
    let (bytes, packets) = (bytes.len() + transfer.byte_len(), packets.take());
    Ok(Some(Load { packets, frames: 1, bytes, snapshot: None, pieces: None, transfer: Some(transfer) }))
}

/// Encodes a frame that is too large to be batched. `None` for a smaller frame.
///
/// # Errors
/// A value that can't leave the process.
pub fn pack(frame: &Frame) -> Result<Option<Load>> {
    if let Some(pieces) = frame.pieces()? {
        let (packets, bytes) = (Arc::default(), pieces.frame_len());
        return Ok(Some(Load { packets, frames: 1, bytes, snapshot: None, pieces: Some(pieces), transfer: None }));
    }
    let bytes = frame.bytes()?;
    if bytes.len() < FULL_BATCH_BYTES {
        return Ok(None);
    }
    let mut packets = Writer::default();
    wire::write_frame(frame.seq(), bytes, None, &mut packets)?;
    Ok(Some(Load {
        packets: packets.take(),
        frames: 1,
        bytes: bytes.len(),
        snapshot: None,
        pieces: None,
        transfer: None,
    }))
}

/// Encodes a frame with its large tensors in shared memory. `None` without such tensors or such memory.
///
/// # Errors
/// The packet would be too large.
pub fn pack_beside(frame: &Frame) -> Result<Option<Load>> {
    let Some((bytes, snapshot)) = frame.bytes_and_snapshot() else { return Ok(None) };
    let mut packets = Writer::default();
    wire::write_frame(frame.seq(), &bytes, None, &mut packets)?;
    let size = bytes.len() + snapshot.byte_len();
    Ok(Some(Load {
        packets: packets.take(),
        frames: 1,
        bytes: size,
        snapshot: Some(snapshot),
        pieces: None,
        transfer: None,
    }))
}

#[cfg(test)]
mod tests {
    use disco_core::{Command, RegisterId};

    use super::*;

    fn frame(seq: u64) -> Frame {
        Frame::new(seq, [], Command::KillReg { register: RegisterId::new(1) })
    }

    #[test]
    fn the_first_frame_is_sent_at_once_and_later_ones_in_a_batch() {
        let (mut batch, now) = (Batch::new(1), Instant::now());
        batch.add(&frame(1)).unwrap();
        assert!(batch.is_due(now));
        let first = batch.take(now).unwrap();
        assert_eq!((first.frames, first.bytes), (1, frame(1).bytes().unwrap().len()));
        assert!(batch.take(now).is_none());
        let mut seq = 1;
        while !{
            seq += 1;
            batch.add(&frame(seq)).unwrap();
            batch.is_due(now)
        } {
            assert_eq!(batch.linger(now), seq == 2, "frame {seq}: only the first lingering frame sets the deadline");
        }
        let rest = batch.take(now).unwrap();
        assert!(rest.bytes >= FULL_BATCH_BYTES && rest.frames == seq - 1);
        assert!(rest.packets.len() > rest.bytes);
    }

    #[test]
    fn lingering_frames_are_sent_at_the_deadline() {
        let (mut batch, start) = (Batch::new(1), Instant::now());
        batch.add(&frame(1)).unwrap();
        assert!(batch.linger(start));
        assert!(batch.expire(start).is_none());
        let deadline = batch.deadline().unwrap();
        assert_eq!(deadline, start + MIN_LINGER);
        assert_eq!(batch.expire(deadline).unwrap().frames, 1);
        // The deadline is set once more, and cleared when it finds no frames.
        let deadline = batch.deadline().unwrap();
        assert!(batch.expire(deadline).is_none());
        assert_eq!(batch.deadline(), None);
    }
}
