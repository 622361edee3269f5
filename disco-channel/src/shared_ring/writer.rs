//! The writing end.

use super::{Garbage, Memory, RECORD_HEADER_WORDS, WakeTarget};
use crate::ring::Refused;
use crate::ring::sync::{Ordering, fence};

/// The writer of the ring.
pub struct Writer {
    memory: Memory,
    head: u64,
    /// The slowest cursor as last computed.
    tail: u64,
    /// Each reader's cursor as last loaded; `None` once the reader is retired.
    cursors: Vec<Option<u64>>,
    /// Whether readers may sleep on records that did not wake them.
    owes: bool,
}

impl Writer {
    /// Makes the writer of a new ring.
    pub fn new(memory: Memory) -> Self {
        let cursors = vec![Some(0); memory.readers()];
        Self { memory, head: 0, tail: 0, cursors, owes: false }
    }

    /// Bytes that a record may have now; `None` if not even an empty record fits. If the result is below `wanted`, the
    /// reader that [leaves half of the ring free](super::Taken::frees_half) tells the writer.
    ///
    /// # Errors
    /// The index of a reader with an impossible cursor.
    pub fn room(&mut self, wanted: usize) -> Result<Option<usize>, (usize, Garbage)> {
        if self.left() < Some(wanted) {
            self.find_tail()?;
        }
        if self.left() < Some(wanted) {
            self.memory.starved().store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.find_tail()?;
            self.wake_rest();
        }
        Ok(self.left())
    }

    /// Bytes of all records so far, with their headers.
    pub fn written_bytes(&self) -> u64 {
        8 * self.head
    }

    /// Publishes a record with a tag to all readers, and wakes the readers of `target`.
    ///
    /// # Errors
    /// [`Refused::Full`] if [`Writer::room`] is less than the record's length.
    pub fn send(&mut self, tag: u64, record: &[u8], target: WakeTarget) -> Result<(), Refused> {
        if self.left() < Some(record.len()) {
            return Err(Refused::Full);
        }
        let memory = &self.memory;
        memory.at(self.head).store(record.len() as u64, Ordering::Relaxed);
        memory.at(self.head + 1).store(tag, Ordering::Relaxed);
        let mut position = self.head + RECORD_HEADER_WORDS;
        let (words, rest) = record.as_chunks::<8>();
        for word in words {
            memory.at(position).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            position += 1;
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            memory.at(position).store(u64::from_ne_bytes(word), Ordering::Relaxed);
            position += 1;
        }
        self.head = position;
        memory.head().store(position, Ordering::Release);
        fence(Ordering::SeqCst);
        let sleepers = match target {
            WakeTarget::One(reader) => memory.sleeps(reader),
            _ => memory.sleepers(),
        };
        // A bell that no sleeper hears would be a system call.
        if sleepers.load(Ordering::Relaxed) > 0 {
            memory.bell().ring(target);
        }
        self.owes = target != WakeTarget::All;
        Ok(())
    }

    /// Wakes readers that sleep on records that did not wake them. Returns whether there may have been any. Call it at
    /// intervals.
    pub fn wake_rest(&mut self) -> bool {
        let owes = std::mem::take(&mut self.owes);
        if owes {
            self.memory.bell().ring(WakeTarget::All);
        }
        owes
    }

    /// Stops waiting for a reader.
    pub fn retire(&mut self, reader: usize) {
        if let Some(cursor) = self.cursors.get_mut(reader) {
            *cursor = None;
            // Other readers see that it has read everything.
            self.memory.cursor(reader).store(u64::MAX, Ordering::Relaxed);
        }
    }

    fn left(&self) -> Option<usize> {
        let words = self.memory.capacity().saturating_sub(self.head - self.tail);
        words.checked_sub(RECORD_HEADER_WORDS).map(|words| 8 * words as usize)
    }

    fn find_tail(&mut self) -> Result<(), (usize, Garbage)> {
        self.tail = self.head;
        for (reader, cursor) in self.cursors.iter_mut().enumerate() {
            let Some(last) = cursor else { continue };
            let now = self.memory.cursor(reader).load(Ordering::Acquire);
            if !(*last..=self.head).contains(&now) {
                return Err((reader, Garbage("its cursor in the ring")));
            }
            *last = now;
            self.tail = self.tail.min(now);
        }
        Ok(())
    }
}
