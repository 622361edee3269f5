//! Frames that go to all peers with one write. A lane with a ring has none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::shared_memory::Snapshot;
use disco_core::wire::{self, Pieces, Transfer, Writer};
use disco_core::{Frame, Result};

use crate::engine::limits::CHUNK;

/// Linger time of frames that nobody waits for, for each peer that is to be written to and woken, and at least.
const LINGER: Duration = Duration::from_micros(50);
const MIN_LINGER: Duration = Duration::from_micros(100);
/// Bytes that do not wait for more.
pub(crate) const ENOUGH: usize = 16 << 10;

/// Frames that have not gone yet.
#[derive(Debug)]
pub(super) struct Batch {
    linger: Duration,
    packets: Writer,
    /// How many, and their own bytes.
    frames: u64,
    bytes: usize,
    /// When other frames have gone.
    sent: Option<Instant>,
    /// When frames that linger go. Set as long as frames keep coming, so that nobody need be told of each.
    deadline: Option<Instant>,
}

/// Packets of frames, how many these are, and their own bytes.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(super) packets: Arc<[u8]>,
    pub(super) frames: u64,
    /// Also those of the snapshot or the transfer.
    pub(super) bytes: usize,
    /// Large tensors of the one frame.
    pub(super) snapshot: Option<Arc<Snapshot>>,
    /// The one packet, in place of `packets`.
    pub(super) pieces: Option<Arc<Pieces>>,
    /// The transfer in which the large tensors of the one frame went ahead.
    pub(super) transfer: Option<Arc<Transfer>>,
}

impl Batch {
    /// For so many peers.
    pub(super) fn new(peers: usize) -> Self {
        let linger = (LINGER * u32::try_from(peers).unwrap_or(u32::MAX)).max(MIN_LINGER);
        Self { linger, packets: Writer::default(), frames: 0, bytes: 0, sent: None, deadline: None }
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

    /// Whether a frame can go with those that are here: a batch is small, so that it need not go in parts.
    pub(super) fn has_place_for(&self, frame: &Frame) -> Result<bool> {
        Ok(self.frames == 0 || frame.bytes()?.len() < ENOUGH)
    }

    /// Whether the frames here go now: none has just gone, or they are enough.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.bytes >= ENOUGH || self.sent.is_none_or(|sent| now.saturating_duration_since(sent) >= self.linger)
    }

    /// The frames here linger. Returns whether there is a deadline that was not there before.
    pub(super) fn wait(&mut self, now: Instant) -> bool {
        let is_new = self.deadline.is_none();
        self.deadline = self.deadline.or(now.checked_add(self.linger));
        is_new
    }

    /// When frames that linger go.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Takes the frames that have lingered long enough. Without any, there is no deadline any more.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Load> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return None;
        }
        let load = self.take(now);
        self.deadline = load.as_ref().and_then(|_| now.checked_add(self.linger));
        load
    }

    /// Other frames have just gone.
    pub(super) fn note_sent(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    /// Frames that are here, and their own bytes.
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
        debug_assert!(frames == 1 || packets.len() <= CHUNK, "what goes in parts is one packet");
        Some(Load { packets, frames, bytes, snapshot: None, pieces: None, transfer: None })
    }
}

/// The packet of a frame whose large tensors went ahead, if they did.
///
/// # Errors
/// A value that can't leave the process.
pub(crate) fn pack_after(frame: &Frame) -> Result<Option<Load>> {
    let Some(transfer) = frame.transfer() else { return Ok(None) };
    let bytes = frame.bytes_without_tensors()?;
    let mut packets = Writer::default();
    wire::write_frame(frame.seq(), &bytes, Some(transfer.id()), &mut packets)?;
    let (bytes, packets) = (bytes.len() + transfer.byte_len(), packets.take());
    Ok(Some(Load { packets, frames: 1, bytes, snapshot: None, pieces: None, transfer: Some(transfer) }))
}

/// The packet of a frame that does not wait for more, if the frame is as large.
///
/// # Errors
/// A value that can't leave the process.
pub(crate) fn pack(frame: &Frame) -> Result<Option<Load>> {
    if let Some(pieces) = frame.pieces()? {
        let (packets, bytes) = (Arc::default(), pieces.frame_len());
        return Ok(Some(Load { packets, frames: 1, bytes, snapshot: None, pieces: Some(pieces), transfer: None }));
    }
    let bytes = frame.bytes()?;
    if bytes.len() < ENOUGH {
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

/// The packet of a frame whose large tensors go along in shared memory, if it has such tensors and there is such memory.
///
/// # Errors
/// The packet would be too large.
pub(crate) fn pack_beside(frame: &Frame) -> Result<Option<Load>> {
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
    fn the_first_frame_goes_at_once_and_those_behind_it_together() {
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
            assert_eq!(batch.wait(now), seq == 2, "told once");
        }
        let rest = batch.take(now).unwrap();
        assert!(rest.bytes >= ENOUGH && rest.frames == seq - 1);
        assert!(rest.packets.len() > rest.bytes);
    }

    #[test]
    fn frames_that_linger_go_at_the_deadline() {
        let (mut batch, start) = (Batch::new(1), Instant::now());
        batch.add(&frame(1)).unwrap();
        assert!(batch.wait(start) && batch.expire(start).is_none());
        let deadline = batch.deadline().unwrap();
        assert_eq!(deadline, start + MIN_LINGER);
        assert_eq!(batch.expire(deadline).unwrap().frames, 1);
        // It looks once more, and no more without frames.
        let deadline = batch.deadline().unwrap();
        assert!(batch.expire(deadline).is_none() && batch.deadline().is_none());
    }
}
