//! A ring of bytes in shared memory: one direction of a connection between two ranks of a machine.
//!
//! ```text
//! header    4 words, 128 bytes apart: bytes written │ bytes read │ whether the reader sleeps │ whether the writer sleeps
//! content   256 KiB: byte b of the stream is at b modulo that
//! ```
//!
//! The writer changes the first word and sets the last one, the reader changes the second one and sets the third one. An end
//! that is about to sleep sets its word and looks again, the other end clears the word after each change and wakes the end that
//! had set it. Between the two accesses of either end is a fence, so that one of them sees the other's.

mod memory;

#[cfg(all(test, loom))]
mod loom_models;

use std::io;
#[cfg(not(loom))]
use std::sync::atomic::{Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};

pub(crate) use memory::Memory;
use memory::{CAPACITY, Word};

/// The most bytes of one access, so that the other end begins before this one has moved a whole ring.
const MAX_ACCESS_BYTES: usize = CAPACITY / 4;
/// The free bytes for which a writer sleeps, so that it does not wake for each access of the reader.
const WAKE_ROOM: usize = CAPACITY / 2;

/// A ring, and the bytes that this end has moved.
struct Ring {
    memory: Memory,
    moved: u64,
}

impl Ring {
    fn new(memory: Memory) -> Self {
        Self { memory, moved: 0 }
    }

    /// Where byte `moved` of the stream is, and how many bytes follow it up to the end of the ring.
    fn place(&self) -> (usize, usize) {
        let at = self.moved as usize % CAPACITY;
        (at, CAPACITY - at)
    }

    /// The bytes that one end is ahead of the other one.
    ///
    /// # Errors
    /// More than the ring has room for.
    fn distance(ahead: u64, behind: u64) -> io::Result<usize> {
        let distance = ahead.wrapping_sub(behind);
        usize::try_from(distance).ok().filter(|distance| *distance <= CAPACITY).ok_or_else(|| {
            let text = format!("the other rank has changed the ring of shared memory wrongly: {distance} bytes in it");
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }

    /// Passes a change of this end's count to the other end. Returns whether that end is to be woken, if `wakes`.
    fn publish(&self, count: Word, sleeper: Word, wakes: bool) -> bool {
        self.memory.word(count).store(self.moved, Ordering::Release);
        fence(Ordering::SeqCst);
        let sleeper = self.memory.word(sleeper);
        wakes && sleeper.load(Ordering::Relaxed) != 0 && sleeper.swap(0, Ordering::Relaxed) != 0
    }

    /// Announces that this end is going to sleep.
    fn announce_sleep(&self, sleeper: Word) {
        self.memory.word(sleeper).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// The rings between a rank and a neighbour.
pub(crate) struct Rings {
    pub(crate) outgoing: Writer,
    pub(crate) incoming: Reader,
}

/// The end of a ring that writes.
pub(crate) struct Writer(Ring);

impl Writer {
    /// The writer of an empty ring.
    pub(crate) fn new(memory: Memory) -> Self {
        Self(Ring::new(memory))
    }

    /// Writes the first bytes of two pieces. Returns how many, 0 if the ring is full, and whether the reader is to be woken.
    ///
    /// # Errors
    /// The reader has changed its count wrongly.
    pub(crate) fn write(&mut self, pieces: [&[u8]; 2]) -> io::Result<(usize, bool)> {
        let mut room = self.room()?.min(MAX_ACCESS_BYTES);
        let before = self.0.moved;
        for mut piece in pieces {
            piece = &piece[..piece.len().min(room)];
            room -= piece.len();
            while !piece.is_empty() {
                let (at, up_to_end) = self.0.place();
                let (first, rest) = piece.split_at(piece.len().min(up_to_end));
                // These bytes are free: the reader's count has passed what was there, and it reads them once this end's has.
                self.0.memory.write(at, first);
                self.0.moved += first.len() as u64;
                piece = rest;
            }
        }
        let count = (self.0.moved - before) as usize;
        Ok((count, count > 0 && self.0.publish(Word::Written, Word::ReaderSleeps, true)))
    }

    /// The bytes that the ring has room for now.
    ///
    /// # Errors
    /// The reader has changed its count wrongly.
    fn room(&self) -> io::Result<usize> {
        let read = self.0.memory.word(Word::Read).load(Ordering::Acquire);
        Ok(CAPACITY - Ring::distance(self.0.moved, read)?)
    }

    /// Whether the reader has read everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.room().is_ok_and(|room| room == CAPACITY)
    }

    /// Whether the writer, which has found the ring full, may go on. If not and if it `sleeps`, the reader wakes it.
    ///
    /// # Errors
    /// The reader has changed its count wrongly.
    pub(crate) fn may_go_on(&self, sleeps: bool) -> io::Result<bool> {
        if sleeps {
            self.0.announce_sleep(Word::WriterSleeps);
        }
        Ok(self.room()? >= WAKE_ROOM)
    }
}

/// The end of a ring that reads.
pub(crate) struct Reader(Ring);

impl Reader {
    /// The reader of an empty ring.
    pub(crate) fn new(memory: Memory) -> Self {
        Self(Ring::new(memory))
    }

    /// Reads bytes. Returns how many, 0 if the ring is empty, and whether the writer is to be woken.
    ///
    /// # Errors
    /// The writer has changed its count wrongly.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<(usize, bool)> {
        let used = self.used()?;
        let count = used.min(into.len()).min(MAX_ACCESS_BYTES);
        let mut rest = &mut into[..count];
        while !rest.is_empty() {
            let (at, up_to_end) = self.0.place();
            let (first, later) = rest.split_at_mut(rest.len().min(up_to_end));
            // The writer's count has passed these bytes, and it writes there again once this end's count has.
            self.0.memory.read(at, first);
            self.0.moved += first.len() as u64;
            rest = later;
        }
        let wakes = CAPACITY - (used - count) >= WAKE_ROOM;
        Ok((count, count > 0 && self.0.publish(Word::Read, Word::WriterSleeps, wakes)))
    }

    /// The bytes that are to be read now.
    ///
    /// # Errors
    /// The writer has changed its count wrongly.
    fn used(&self) -> io::Result<usize> {
        Ring::distance(self.0.memory.word(Word::Written).load(Ordering::Acquire), self.0.moved)
    }

    /// Whether the reader, which has found the ring empty, may go on. If not and if it `sleeps`, the writer wakes it.
    ///
    /// # Errors
    /// The writer has changed its count wrongly.
    pub(crate) fn may_go_on(&self, sleeps: bool) -> io::Result<bool> {
        if sleeps {
            self.0.announce_sleep(Word::ReaderSleeps);
        }
        Ok(self.used()? > 0)
    }
}
