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

#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use disco_core::shared_memory::Segment;

/// Bytes between two words of the header: a pair of cache lines.
const LINE_BYTES: usize = 128;
const HEADER_BYTES: usize = 4 * LINE_BYTES;
/// Bytes of the stream that a ring has room for.
const CAPACITY: usize = 256 << 10;
/// Bytes of a ring in its segment.
pub(crate) const RING_BYTES: usize = HEADER_BYTES + CAPACITY;
/// The most bytes of one access, so that the other end begins before this one has moved a whole ring.
const MAX_ACCESS_BYTES: usize = 64 << 10;
/// The free bytes for which a writer sleeps, so that it does not wake for each access of the reader.
const WAKE_ROOM: usize = CAPACITY / 2;

/// The words of the header.
#[derive(Clone, Copy)]
enum Word {
    Written,
    Read,
    ReaderSleeps,
    WriterSleeps,
}

/// A ring, and the bytes that this end has moved.
struct Ring {
    segment: Arc<Segment>,
    /// Where the ring begins in the segment: a multiple of [`LINE_BYTES`].
    start: usize,
    moved: u64,
}

impl Ring {
    fn new(segment: Arc<Segment>, start: usize) -> Self {
        Self { segment, start, moved: 0 }
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        &self.segment.words()[(self.start + word as usize * LINE_BYTES) / size_of::<u64>()]
    }

    /// The address of byte `moved` of the stream, and how many bytes follow it up to the end of the ring.
    fn place(&self) -> (*mut u8, usize) {
        let at = self.moved as usize % CAPACITY;
        (self.segment.pointer().wrapping_add(self.start + HEADER_BYTES + at), CAPACITY - at)
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
        self.word(count).store(self.moved, Ordering::Release);
        fence(Ordering::SeqCst);
        let sleeper = self.word(sleeper);
        wakes && sleeper.load(Ordering::Relaxed) != 0 && sleeper.swap(0, Ordering::Relaxed) != 0
    }

    /// Announces that this end is going to sleep.
    fn announce_sleep(&self, sleeper: Word) {
        self.word(sleeper).store(1, Ordering::Relaxed);
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
    /// The writer of the empty ring at `start` of a segment.
    pub(crate) fn new(segment: Arc<Segment>, start: usize) -> Self {
        Self(Ring::new(segment, start))
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
                let (to, up_to_end) = self.0.place();
                let (first, rest) = piece.split_at(piece.len().min(up_to_end));
                // SAFETY: `to` is in the segment, as are the bytes up to the end of the ring. They are free: the count of the
                // reader says that it has read the bytes before them, and it reads them after this end's count has passed them.
                unsafe { ptr::copy_nonoverlapping(first.as_ptr(), to, first.len()) };
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
        let read = self.0.word(Word::Read).load(Ordering::Acquire);
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
    /// The reader of the empty ring at `start` of a segment.
    pub(crate) fn new(segment: Arc<Segment>, start: usize) -> Self {
        Self(Ring::new(segment, start))
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
            let (from, up_to_end) = self.0.place();
            let (first, later) = rest.split_at_mut(rest.len().min(up_to_end));
            // SAFETY: `from` is in the segment, as are the bytes up to the end of the ring. The writer's count says that they are
            // written, and it writes there again only after this end's count says that they are read.
            unsafe { ptr::copy_nonoverlapping(from, first.as_mut_ptr(), first.len()) };
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
        Ring::distance(self.0.word(Word::Written).load(Ordering::Acquire), self.0.moved)
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
