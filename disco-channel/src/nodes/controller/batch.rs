//! Frames that go to all nodes with one write.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::wire::{self, Writer};
use disco_core::{Frame, Result};

use crate::connection::CHUNK;

/// How long frames that nobody waits for may wait for others, for each node that is to be written to and woken, and at least.
const LINGER: Duration = Duration::from_micros(50);
const LEAST: Duration = Duration::from_micros(100);
/// Bytes that do not wait for more.
const ENOUGH: usize = 16 << 10;

/// Frames that have not gone yet.
pub(super) struct Batch {
    /// How long they wait.
    pub(super) linger: Duration,
    packets: Writer,
    /// How many, and their own bytes.
    frames: u64,
    bytes: usize,
    /// When others have gone.
    sent: Option<Instant>,
    /// The service thread knows that some may be here.
    is_watched: bool,
}

/// What goes: packets, how many frames these are, and their own bytes.
pub(super) struct Load {
    pub(super) packets: Arc<[u8]>,
    pub(super) frames: u64,
    pub(super) bytes: usize,
}

impl Batch {
    /// For so many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        let linger = (LINGER * u32::try_from(nodes).unwrap_or(u32::MAX)).max(LEAST);
        Self { linger, packets: Writer::default(), frames: 0, bytes: 0, sent: None, is_watched: false }
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// A value that can't leave the process.
    pub(super) fn add(&mut self, frame: &Frame) -> Result<()> {
        let bytes = frame.bytes()?;
        wire::write_frame(frame.seq(), bytes, &mut self.packets)?;
        self.frames += 1;
        self.bytes += bytes.len();
        Ok(())
    }

    /// Whether a frame can go with those that are here: what goes at once is small, so that it need not go in parts.
    pub(super) fn has_place_for(&self, frame: &Frame) -> Result<bool> {
        Ok(self.frames == 0 || frame.bytes()?.len() < ENOUGH)
    }

    /// Whether what is here should go: others have not just gone, or it is enough.
    pub(super) fn is_due(&self) -> bool {
        self.bytes >= ENOUGH || self.sent.is_none_or(|sent| sent.elapsed() >= self.linger)
    }

    /// Has the service thread watch, and says whether it is to be told.
    pub(super) fn watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// Nobody watches any more.
    pub(super) fn unwatch(&mut self) {
        self.is_watched = false;
    }

    /// Frames that are here, and their own bytes.
    pub(super) fn size(&self) -> (u64, usize) {
        (self.frames, self.bytes)
    }

    /// Whether the service thread is to look here.
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// What is to go now.
    pub(super) fn take(&mut self) -> Option<Load> {
        if self.frames == 0 {
            return None;
        }
        self.sent = Some(Instant::now());
        let (frames, bytes) = (std::mem::take(&mut self.frames), std::mem::take(&mut self.bytes));
        let packets = self.packets.take();
        debug_assert!(frames == 1 || packets.len() <= CHUNK, "what goes in parts is one packet");
        Some(Load { packets, frames, bytes })
    }
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
        let mut batch = Batch { linger: Duration::MAX, ..Batch::new(1) };
        batch.add(&frame(1)).unwrap();
        assert!(batch.is_due());
        let first = batch.take().unwrap();
        assert_eq!((first.frames, first.bytes), (1, frame(1).bytes().unwrap().len()));
        assert!(batch.take().is_none());
        let mut seq = 1;
        while !{
            seq += 1;
            batch.add(&frame(seq)).unwrap();
            batch.is_due()
        } {
            assert_eq!(batch.watch(), seq == 2, "told once");
        }
        let rest = batch.take().unwrap();
        assert!(rest.bytes >= ENOUGH && rest.frames == seq - 1);
        assert!(rest.packets.len() > rest.bytes);
    }
}
