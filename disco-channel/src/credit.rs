//! How many frames may be under way over a connection.

use std::sync::atomic::{AtomicU64, Ordering};

/// Frames that may be unread.
pub(crate) const CAPACITY: u64 = 1024;
/// Their bytes, but for the last frame.
pub(crate) const UNREAD: u64 = 64 << 20;
/// The frames and bytes that the other end takes before it says so.
const ACKNOWLEDGE: (u64, u64) = (CAPACITY / 4, UNREAD / 4);

/// The sender's side.
#[derive(Default)]
pub(crate) struct Credit {
    posted: Count,
    taken: Count,
}

/// Frames and their bytes.
#[derive(Default)]
struct Count {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl Credit {
    /// Frames go.
    pub(crate) fn use_up(&self, frames: u64, bytes: usize) {
        self.posted.frames.fetch_add(frames, Ordering::Relaxed);
        self.posted.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The other end has taken so many frames and bytes in all.
    pub(crate) fn acknowledge(&self, frames: u64, bytes: u64) {
        self.taken.frames.fetch_max(frames, Ordering::SeqCst);
        self.taken.bytes.fetch_max(bytes, Ordering::SeqCst);
    }

    /// Frames that may go, where so many and their bytes are about to; none while too many bytes are unread.
    pub(crate) fn left(&self, (frames, bytes): (u64, usize)) -> u64 {
        let unread = |posted: &AtomicU64, taken: &AtomicU64| {
            posted.load(Ordering::Relaxed).saturating_sub(taken.load(Ordering::SeqCst))
        };
        match unread(&self.posted.bytes, &self.taken.bytes) + bytes as u64 {
            bytes if bytes >= UNREAD => 0,
            _ => CAPACITY.saturating_sub(unread(&self.posted.frames, &self.taken.frames) + frames),
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
