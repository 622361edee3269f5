//! The ring between processes while a misbehaving process writes to its memory. Records are never longer than the ring.
//! As long as only the writer and the readers have written to the memory, readers take the records that were sent.
//!
//! ```text
//! input   u8 log2 of the ring's words, u8 readers, then steps:
//!         0 take by one reader     u8 reader
//!         1 room                   u8 bytes wanted
//!         2 send                   u8 length
//!         3 retire one reader      u8 reader
//!         4 any word               u16 index, u64 value
//!         5 head or a cursor       u8 which, i8 by how much it is moved
//!         6 a word of the ring     u8 index, u8 value
//! ```

#![no_main]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};

use disco_channel::ring::Refused;
use disco_channel::shared_ring::{Memory, Reader, WakeTarget, Writer};
use disco_core::shared_memory::Segment;
use disco_core::wire::{self, WireError};

/// Maximum number of readers.
const READERS: usize = 4;
/// Maximum log2 of the ring's words.
const LARGEST: u8 = 7;
/// Maximum number of steps.
const STEPS: usize = 200;

/// Memory for the largest ring, reused by each run.
static SEGMENT: LazyLock<Arc<Segment>> = LazyLock::new(|| {
    let bytes = 8 * Memory::words(READERS, 1 << LARGEST);
    Arc::new(Segment::create(bytes).expect("memory for one ring"))
});

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), Infallible> {
    let mut from = wire::Reader::new(bytes);
    // The steps end with the input.
    if let Ok(mut ring) = Ring::new(&mut from) {
        _ = (0..STEPS).try_for_each(|_| ring.step(&mut from));
    }
    Ok(())
}

struct Ring {
    words: usize,
    /// Bytes of the longest record: all words but the two before it.
    most: usize,
    writer: Writer,
    /// Each reader, with the records that were sent to it.
    readers: Vec<(Reader, VecDeque<Vec<u8>>)>,
    /// Whether no step has written to the memory directly.
    is_sound: bool,
    sent: u8,
}

impl Ring {
    fn new(from: &mut wire::Reader<'_>) -> Result<Self, WireError> {
        let (capacity, readers) = (1usize << (from.u8()? % (LARGEST + 1)), 1 + usize::from(from.u8()?) % READERS);
        SEGMENT.words().iter().for_each(|word| word.store(0, Relaxed));
        let memory = Memory::new(SEGMENT.clone(), readers, capacity).expect("a ring that fits");
        Ok(Self {
            words: Memory::words(readers, capacity),
            most: 8 * capacity.saturating_sub(2),
            writer: Writer::new(memory.clone()),
            readers: (0..readers).map(|index| (Reader::new(memory.clone(), index), VecDeque::new())).collect(),
            is_sound: true,
            sent: 0,
        })
    }

    fn step(&mut self, from: &mut wire::Reader<'_>) -> Result<(), WireError> {
        match from.u8()? % 7 {
            0 => self.take(from.u8()?.into()),
            1 => self.room(from.u8()?.into()),
            2 => self.send(from.u8()?.into()),
            3 => self.retire(from.u8()?.into()),
            4 => {
                let index = usize::from(from.u16()?) % self.words;
                self.meddle(index, from.u64()?);
            }
            5 => {
                // The head, then the cursors, each on lines of its own.
                let which = usize::from(from.u8()?) % (1 + self.readers.len());
                let index = which.checked_sub(1).map_or(0, |reader| 16 * (4 + reader));
                let moved = SEGMENT.words()[index].load(Relaxed).wrapping_add_signed((from.u8()? as i8).into());
                self.meddle(index, moved);
            }
            _ => {
                let first = Memory::words(self.readers.len(), 0);
                let index = first + usize::from(from.u8()?) % (self.words - first);
                self.meddle(index, from.u8()?.into());
            }
        }
        Ok(())
    }

    fn meddle(&mut self, index: usize, value: u64) {
        SEGMENT.words()[index].store(value, Relaxed);
        self.is_sound = false;
    }

    fn take(&mut self, index: usize) {
        let index = index % self.readers.len();
        let ((reader, due), mut record) = (&mut self.readers[index], Vec::new());
        let taken = reader.take(&mut record);
        assert!(record.len() <= self.most, "{} bytes, at most {}", record.len(), self.most);
        if self.is_sound {
            assert_eq!(taken.expect("nobody has meddled").map(|_| record), due.pop_front());
        }
    }

    fn room(&mut self, wanted: usize) {
        match self.writer.room(wanted) {
            Ok(room) => assert!(room.unwrap_or(0) <= self.most, "{room:?}, at most {}", self.most),
            Err(garbage) => assert!(!self.is_sound, "nobody has meddled: {garbage:?}"),
        }
    }

    fn send(&mut self, len: usize) {
        self.sent = self.sent.wrapping_add(1);
        let record = vec![self.sent; len];
        if self.writer.send(self.sent.into(), &record, WakeTarget::All) != Err(Refused::Full) {
            self.readers.iter_mut().for_each(|(_, due)| due.push_back(record.clone()));
        }
    }

    fn retire(&mut self, index: usize) {
        self.writer.retire(index % self.readers.len());
        // A retired reader may miss records.
        self.is_sound = false;
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let small = [4, 1, 2, 9, 0, 0, 0, 1, 2, 0, 1, 100, 0, 0, 2, 40, 2, 40, 2, 40, 0, 0, 1, 90, 0, 1, 1, 90];
    let long = [2, 20, 0, 0, 2, 30, 0, 0, 1, 60].repeat(20);
    let meddled = [3, 0, 2, 8, 5, 0, 200, 0, 0, 4, 80, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 5, 1, 9, 1, 60];
    vec![small.to_vec(), [vec![5, 0], long].concat(), meddled.to_vec(), vec![3, 2, 3, 1, 2, 8, 0, 0, 1, 60]]
}
