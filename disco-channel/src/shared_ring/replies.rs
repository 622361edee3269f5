//! Replies without a value that readers leave for callers that poll.

use super::Memory;
use crate::ring::sync::{Ordering, fence};

/// The replies in the memory of a ring: one word for each reader.
#[derive(Clone)]
pub struct Replies(Memory);

impl Replies {
    /// The replies of the readers of `memory`.
    pub fn new(memory: Memory) -> Self {
        Self(memory)
    }

    /// Leaves the reply of a reader to command `number` for a caller that polls. Returns false if the reader has to
    /// send the reply another way, because no caller polls or its last reply was not taken.
    pub fn leave(&self, reader: usize, number: u64) -> bool {
        let (polling, reply) = (self.0.polling(), self.0.reply(reader));
        if number == 0
            || polling.load(Ordering::Relaxed) == 0
            || reply.compare_exchange(0, number, Ordering::Release, Ordering::Relaxed).is_err()
        {
            return false;
        }
        fence(Ordering::SeqCst);
        let is_seen = polling.load(Ordering::Relaxed) != 0;
        is_seen || reply.swap(0, Ordering::Relaxed) == 0
    }

    /// A caller begins to poll.
    pub fn start_polling(&self) {
        self.0.polling().fetch_add(1, Ordering::Relaxed);
    }

    /// A caller ends its polling. It has to [take](Self::take) the replies that are left.
    pub fn stop_polling(&self) {
        self.0.polling().fetch_sub(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether a reply waits to be taken.
    pub fn are_left(&self) -> bool {
        (0..self.0.readers()).any(|reader| self.0.reply(reader).load(Ordering::Relaxed) != 0)
    }

    /// Takes the replies: calls `deliver` with the reader and the number of the command.
    pub fn take(&self, mut deliver: impl FnMut(usize, u64)) {
        for reader in 0..self.0.readers() {
            let reply = self.0.reply(reader);
            if reply.load(Ordering::Relaxed) == 0 {
                continue;
            }
            match reply.swap(0, Ordering::Acquire) {
                0 => {}
                number => deliver(reader, number),
            }
        }
    }
}
