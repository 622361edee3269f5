//! How many frames may be under way over a connection.

use std::collections::VecDeque;

/// Frames that may be unread.
pub(crate) const CAPACITY: u64 = 1024;
/// Their bytes, but for the last frame.
pub(crate) const UNREAD: u64 = 64 << 20;
/// The frames and bytes that the other end takes before it says so.
const ACKNOWLEDGE: (u64, u64) = (CAPACITY / 4, UNREAD / 4);

/// Bytes of a frame above which it is large: frames that are not large may go while large ones use up the bytes.
const LARGE: usize = 64 << 10;

/// Frames and bytes that went to one peer, and how many of them it has taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit {
    posted: (u64, u64),
    taken: (u64, u64),
    /// Large frames that the peer has not taken, oldest first: bytes posted up to the end of each, and its own.
    large: VecDeque<(u64, u64)>,
}

impl Credit {
    /// Frames go.
    pub(crate) fn use_up(&mut self, frames: u64, bytes: usize) {
        self.posted = (self.posted.0 + frames, self.posted.1 + bytes as u64);
        if frames == 1 && bytes > LARGE {
            self.large.push_back((self.posted.1, bytes as u64));
        }
    }

    /// The peer has taken so many frames and bytes in all.
    pub(crate) fn acknowledge(&mut self, frames: u64, bytes: u64) {
        self.taken = (self.taken.0.max(frames), self.taken.1.max(bytes));
        while self.large.pop_front_if(|(end, _)| *end <= self.taken.1).is_some() {}
    }

    /// Frames that may go, where so many and their bytes are about to; none while too many bytes are unread.
    pub(crate) fn left(&self, batch: (u64, usize)) -> u64 {
        self.left_beside(batch, 0)
    }

    /// Frames of at most 64 KiB that may go: large frames under way do not count by their bytes.
    pub(crate) fn left_for_small(&self, batch: (u64, usize)) -> u64 {
        self.left_beside(batch, self.large.iter().map(|(_, bytes)| bytes).sum())
    }

    fn left_beside(&self, (frames, bytes): (u64, usize), large: u64) -> u64 {
        match self.posted.1.saturating_sub(self.taken.1).saturating_sub(large) + bytes as u64 {
            bytes if bytes >= UNREAD => 0,
            _ => CAPACITY.saturating_sub(self.posted.0.saturating_sub(self.taken.0) + frames),
        }
    }
}

/// The receiver's side: frames and bytes taken, and what of it was said.
#[derive(Default)]
pub(crate) struct Taken {
    taken: (u64, u64),
    said: (u64, u64),
}

impl Taken {
    /// Takes a frame. Returns whether it is time to say so.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        self.taken = (self.taken.0 + 1, self.taken.1 + bytes as u64);
        self.taken.0 - self.said.0 >= ACKNOWLEDGE.0 || self.taken.1 - self.said.1 >= ACKNOWLEDGE.1
    }

    /// What is to be said: frames and bytes taken in all.
    pub(crate) fn say(&mut self) -> (u64, u64) {
        self.said = self.taken;
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_counts_what_was_not_acknowledged() {
        let mut credit = Credit::default();
        credit.use_up(CAPACITY - 1, 10);
        assert_eq!([credit.left((0, 0)), credit.left((1, 1))], [1, 0]);
        credit.acknowledge(CAPACITY / 4, 5);
        // A late or a hostile acknowledgement changes nothing.
        credit.acknowledge(1, 1);
        assert_eq!(credit.left((0, 0)), CAPACITY / 4 + 1);
        credit.acknowledge(u64::MAX, u64::MAX);
        assert_eq!(credit.left((0, 0)), CAPACITY);
        credit.use_up(1, UNREAD as usize);
        assert_eq!(Credit { taken: (0, 0), ..credit }.left((0, 0)), 0);
    }

    #[test]
    fn small_frames_go_while_large_ones_use_up_the_bytes() {
        let mut credit = Credit::default();
        credit.use_up(1, 10);
        credit.use_up(1, UNREAD as usize);
        credit.use_up(1, UNREAD as usize);
        assert_eq!((credit.left((0, 0)), credit.left_for_small((0, 0))), (0, CAPACITY - 3));
        credit.acknowledge(2, 10 + UNREAD);
        assert_eq!(credit.large.len(), 1, "the first large frame was taken");
        credit.use_up(16, 16 << 10);
        assert_eq!(credit.left_for_small((0, 0)), CAPACITY - 17);
        credit.use_up(600, UNREAD as usize - (32 << 10));
        assert_eq!(credit.left_for_small((0, 16 << 10)), 0, "small frames have as many bytes for themselves");
    }
}
