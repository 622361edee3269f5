//! How many frames may be under way over a connection.

/// Frames that may be unread.
pub(crate) const CAPACITY: u64 = 1024;
/// Their bytes, but for the last frame.
pub(crate) const UNREAD: u64 = 64 << 20;
/// The frames and bytes that the other end takes before it says so.
const ACKNOWLEDGE: (u64, u64) = (CAPACITY / 4, UNREAD / 4);

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
