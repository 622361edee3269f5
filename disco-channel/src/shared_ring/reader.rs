//! The reading end.

use super::{Garbage, Memory, RECORD_HEADER_WORDS, WakeTarget};
use crate::ring::spin_policy::{Expect, SpinPolicy};
use crate::ring::sync::{AtomicBool, Ordering, fence};

/// A reader of the ring.
pub struct Reader {
    memory: Memory,
    index: usize,
    cursor: u64,
    /// The head as last loaded; records before it are published.
    seen: u64,
    spin_policy: SpinPolicy,
    /// How the next wait spins.
    expect: Expect,
}

/// The tag of a record that was taken, and whether the writer waits for room.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The tag that the writer gave the record.
    pub tag: u64,
    /// The writer waits for room, and half of the ring is free now: this reader has to tell the writer.
    pub frees_half: bool,
}

impl Reader {
    /// Makes reader `index` of a new ring.
    pub fn new(memory: Memory, index: usize) -> Self {
        let spin_policy = SpinPolicy::new(memory.readers() + 1);
        Self { memory, index, cursor: 0, seen: 0, spin_policy, expect: Expect::default() }
    }

    /// Copies the next record to `into`, if there is one.
    ///
    /// # Errors
    /// The ring holds an impossible head or record length.
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
        if there < RECORD_HEADER_WORDS || words > there - RECORD_HEADER_WORDS {
            return Err(Garbage("the length of a record"));
        }
        let tag = self.memory.at(self.cursor + 1).load(Ordering::Relaxed);
        let start = self.cursor + RECORD_HEADER_WORDS;
        // Overwritten without being cleared first.
        into.resize(8 * words as usize, 0);
        for (position, to) in (start..).zip(into.as_chunks_mut::<8>().0) {
            *to = self.memory.at(position).load(Ordering::Relaxed).to_ne_bytes();
        }
        into.truncate(bytes as usize);
        Ok(Some(Taken { tag, frees_half: self.advance(start + words) }))
    }

    /// Advances the cursor. Returns whether half of the ring is free now and the writer waits for that.
    fn advance(&mut self, to: u64) -> bool {
        let quarter = (self.memory.capacity() / 4).max(1);
        // The quarter is a power of two.
        let crosses = (self.cursor ^ to) >= quarter;
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

    /// Tells how soon the next record may come; holds for the next wait.
    #[cfg(not(loom))]
    pub(crate) fn expect(&mut self, expect: Expect) {
        self.expect = expect;
    }

    /// Waits for a record that wakes this reader: spins, then yields, then sleeps. Returns early once `stop` is set;
    /// the thread that sets it has to call [`Reader::wake`]. May return without a record.
    pub fn wait(&mut self, stop: &AtomicBool) {
        let (spin_policy, expect) = (self.spin_policy, std::mem::take(&mut self.expect));
        if spin_policy.spin_until(expect, || self.is_over(stop)) {
            return;
        }
        let rung = self.memory.bell().rung();
        self.memory.sleepers().fetch_add(1, Ordering::Relaxed);
        self.memory.sleeps(self.index).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !self.is_over(stop) {
            self.memory.bell().sleep(rung, self.index);
        }
        self.memory.sleeps(self.index).store(0, Ordering::Relaxed);
        self.memory.sleepers().fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes all sleeping readers of this memory, after a `stop` flag was set.
    pub fn wake(memory: &Memory) {
        memory.bell().ring(WakeTarget::All);
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
