//! Credit-based flow control of the frames of a connection.

use std::collections::VecDeque;
use std::time::Duration;

use disco_core::{Error, Result};

/// Frames that may be unacknowledged.
pub(crate) const MAX_UNREAD_FRAMES: u64 = 1024;
/// Bytes that may be unacknowledged before the last frame.
pub const MAX_UNREAD_BYTES: u64 = 64 << 20;
/// Frames or bytes after which the receiver acknowledges.
const ACKNOWLEDGE_AFTER: (u64, u64) = (MAX_UNREAD_FRAMES / 4, MAX_UNREAD_BYTES / 4);

/// Frames above this size are large. Large frames do not use up the credit of bytes of small ones.
const LARGE_FRAME_BYTES: usize = 64 << 10;

/// Large frames that a busy receiver decodes in a second at least. It sends no heartbeats meanwhile.
const DECODED_BYTES_PER_SECOND: u64 = 32 << 20;

/// The sender's side: the frames and bytes that were posted to a peer, and that the peer has acknowledged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit {
    posted: (u64, u64),
    taken: (u64, u64),
    /// Unacknowledged large frames, oldest first: bytes posted up to the end of the frame, and bytes of the frame.
    large: VecDeque<(u64, u64)>,
}

impl Credit {
    /// Records frames that are sent.
    pub(crate) fn use_up(&mut self, frames: u64, bytes: usize) {
        self.posted = (self.posted.0 + frames, self.posted.1 + bytes as u64);
        if frames == 1 && bytes > LARGE_FRAME_BYTES {
            self.large.push_back((self.posted.1, bytes as u64));
        }
    }

    /// Records the total frames and bytes that the peer has acknowledged.
    ///
    /// # Errors
    /// More than were posted: the peer's later acknowledgements would say nothing.
    pub(crate) fn acknowledge(&mut self, frames: u64, bytes: u64) -> Result<()> {
        let (posted_frames, posted_bytes) = self.posted;
        if frames > posted_frames || bytes > posted_bytes {
            return Err(Error::protocol(format!(
                "an acknowledgement of {frames} frames and {bytes} bytes, and {posted_frames} and {posted_bytes} were sent"
            )));
        }
        self.taken = (self.taken.0.max(frames), self.taken.1.max(bytes));
        while self.large.pop_front_if(|(end, _)| *end <= self.taken.1).is_some() {}
        Ok(())
    }

    /// Frames that may be sent besides those of `batch` (frames and bytes); 0 while too many bytes are unacknowledged.
    pub(crate) fn left(&self, batch: (u64, usize)) -> u64 {
        self.left_after(batch, 0)
    }

    /// Frames of at most 64 KiB that may be sent: bytes of unacknowledged large frames do not count.
    pub(crate) fn left_for_small(&self, batch: (u64, usize)) -> u64 {
        self.left_after(batch, self.large_bytes())
    }

    /// Time that the peer may take to decode the unacknowledged large frames.
    pub(crate) fn decode_time(&self) -> Duration {
        Duration::from_millis(self.large_bytes().saturating_mul(1000) / DECODED_BYTES_PER_SECOND)
    }

    fn large_bytes(&self) -> u64 {
        self.large.iter().map(|(_, bytes)| bytes).sum()
    }

    fn left_after(&self, (frames, bytes): (u64, usize), large: u64) -> u64 {
        match self.posted.1.saturating_sub(self.taken.1).saturating_sub(large) + bytes as u64 {
            bytes if bytes >= MAX_UNREAD_BYTES => 0,
            _ => MAX_UNREAD_FRAMES.saturating_sub(self.posted.0.saturating_sub(self.taken.0) + frames),
        }
    }
}

/// The receiver's side: frames and bytes taken, and those acknowledged.
#[derive(Default)]
pub struct Taken {
    taken: (u64, u64),
    acknowledged: (u64, u64),
}

impl Taken {
    /// Records a frame. Returns whether an acknowledgement is due.
    pub fn take(&mut self, bytes: usize) -> bool {
        self.taken = (self.taken.0 + 1, self.taken.1 + bytes as u64);
        self.taken.0 - self.acknowledged.0 >= ACKNOWLEDGE_AFTER.0
            || self.taken.1 - self.acknowledged.1 >= ACKNOWLEDGE_AFTER.1
    }

    /// Returns the totals to acknowledge.
    pub fn acknowledge(&mut self) -> (u64, u64) {
        self.acknowledged = self.taken;
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_counts_unacknowledged_frames() {
        let mut credit = Credit::default();
        credit.use_up(MAX_UNREAD_FRAMES - 1, 10);
        assert_eq!([credit.left((0, 0)), credit.left((1, 1))], [1, 0]);
        credit.acknowledge(MAX_UNREAD_FRAMES / 4, 5).unwrap();
        // A late or hostile acknowledgement changes nothing.
        credit.acknowledge(1, 1).unwrap();
        credit.acknowledge(u64::MAX, 5).unwrap_err();
        credit.acknowledge(1, 11).unwrap_err();
        assert_eq!(credit.left((0, 0)), MAX_UNREAD_FRAMES / 4 + 1);
        credit.acknowledge(MAX_UNREAD_FRAMES - 1, 10).unwrap();
        assert_eq!(credit.left((0, 0)), MAX_UNREAD_FRAMES);
        credit.use_up(1, MAX_UNREAD_BYTES as usize);
        assert_eq!(Credit { taken: (0, 0), ..credit }.left((0, 0)), 0);
    }

    #[test]
    fn small_frames_go_while_large_ones_use_up_the_bytes() {
        let mut credit = Credit::default();
        credit.use_up(1, 10);
        credit.use_up(1, MAX_UNREAD_BYTES as usize);
        credit.use_up(1, MAX_UNREAD_BYTES as usize);
        assert_eq!((credit.left((0, 0)), credit.left_for_small((0, 0))), (0, MAX_UNREAD_FRAMES - 3));
        assert_eq!(credit.decode_time(), Duration::from_secs(4));
        credit.acknowledge(2, 10 + MAX_UNREAD_BYTES).unwrap();
        assert_eq!(credit.large.len(), 1, "the first large frame was taken");
        assert_eq!(credit.decode_time(), Duration::from_secs(2));
        credit.use_up(16, 16 << 10);
        assert_eq!(credit.left_for_small((0, 0)), MAX_UNREAD_FRAMES - 17);
        credit.use_up(600, MAX_UNREAD_BYTES as usize - (32 << 10));
        assert_eq!(credit.left_for_small((0, 16 << 10)), 0, "small frames have the same limit of bytes for themselves");
    }
}
