//! The reading end.

use super::{Garbage, HEADER, Memory, Whom};
use crate::ring::patience::Patience;
use crate::ring::sync::{AtomicBool, Ordering, fence};

/// One of those who read.
pub struct Reader {
    memory: Memory,
    index: usize,
    cursor: u64,
    /// A head seen: everything before it is there.
    seen: u64,
    patience: Patience,
}

/// A record was taken.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What its writer gave it.
    pub tag: u64,
    /// The writer had no room, and half of the ring is free now: this reader has to tell it.
    pub frees_half: bool,
}

impl Reader {
    /// Reader `index`, who has read nothing.
    pub fn new(memory: Memory, index: usize) -> Self {
        let patience = Patience::new(memory.readers() + 1);
        Self { memory, index, cursor: 0, seen: 0, patience }
    }

    /// Copies the next record to `into`, if there is one.
    ///
    /// # Errors
    /// Something that no writer would write.
    pub fn take(&mut self, into: &mut Vec<u8>) -> Result<Option<Taken>, Garbage> {
        if !self.is_ready() {
            return Ok(None);
        }
        let there = self.seen.wrapping_sub(self.cursor);
        if there > self.memory.capacity() {
            return Err(Garbage("its head"));
        }
        let bytes = self.memory.at(self.cursor).load(Ordering::Relaxed);
        let words = bytes.div_ceil(8);
        if there < HEADER || words > there - HEADER {
            return Err(Garbage("the length of a record"));
        }
        let tag = self.memory.at(self.cursor + 1).load(Ordering::Relaxed);
        let start = self.cursor + HEADER;
        into.clear();
        for position in start..start + words {
            into.extend_from_slice(&self.memory.at(position).load(Ordering::Relaxed).to_ne_bytes());
        }
        into.truncate(bytes as usize);
        Ok(Some(Taken { tag, frees_half: self.advance(start + words) }))
    }

    /// Returns whether that frees half of the ring, which the writer waits for.
    fn advance(&mut self, to: u64) -> bool {
        let quarter = (self.memory.capacity() / 4).max(1);
        let crosses = self.cursor / quarter != to / quarter;
        self.cursor = to;
        let memory = &self.memory;
        memory.cursor(self.index).store(to, Ordering::Release);
        if !crosses {
            return false;
        }
        fence(Ordering::SeqCst);
        memory.starved().load(Ordering::Relaxed) != 0
            && self.is_half_free()
            && memory.starved().swap(0, Ordering::Relaxed) != 0
    }

    fn is_half_free(&self) -> bool {
        let (memory, head) = (&self.memory, self.memory.head().load(Ordering::Relaxed));
        let unread = |reader| head.saturating_sub(memory.cursor(reader).load(Ordering::Relaxed));
        (0..memory.readers()).map(unread).all(|unread| unread <= memory.capacity() / 2)
    }

    /// Waits for a record that concerns this reader: spins, then yields, then sleeps. Ends early when `stop` holds, which has to
    /// [ring](Reader::wake).
    pub fn wait(&mut self, stop: &AtomicBool) {
        let patience = self.patience;
        if patience.look(|| self.is_over(stop)) {
            return;
        }
        let rung = self.memory.bell().rung();
        self.memory.sleepers().fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !self.is_over(stop) {
            self.memory.bell().sleep(rung, self.index);
        }
        self.memory.sleepers().fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes those who sleep in this memory, after something has changed that their `stop` looks at.
    pub fn wake(memory: &Memory) {
        memory.bell().ring(Whom::All);
    }

    fn is_over(&mut self, stop: &AtomicBool) -> bool {
        self.is_ready() || stop.load(Ordering::Acquire)
    }

    fn is_ready(&mut self) -> bool {
        if self.seen == self.cursor {
            self.seen = self.memory.head().load(Ordering::Acquire);
        }
        self.seen != self.cursor
    }
}
