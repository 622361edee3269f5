//! Where things stand in the shared words.

use super::bell::Bell;
use crate::ring::sync::{Arc, AtomicU64};

/// Words on two cache lines, which processors fetch in pairs.
const LINE: usize = 16;
/// Lines before those of the cursors.
const LINES: usize = 4;

/// The words of one ring, which writer and readers share.
#[derive(Clone)]
pub struct Memory {
    words: Arc<Words>,
    readers: usize,
    /// A power of two.
    capacity: usize,
}

impl Memory {
    /// Words that a ring for so many readers with so many words of room takes.
    pub fn words(readers: usize, capacity: usize) -> usize {
        LINE * (LINES + readers) + capacity
    }

    pub(super) fn readers(&self) -> usize {
        self.readers
    }

    /// Words of the ring itself.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    pub(super) fn head(&self) -> &AtomicU64 {
        self.words.word(0)
    }

    pub(super) fn bell(&self) -> Bell<'_> {
        self.words.bell(LINE)
    }

    pub(super) fn sleepers(&self) -> &AtomicU64 {
        self.words.word(2 * LINE)
    }

    pub(super) fn starved(&self) -> &AtomicU64 {
        self.words.word(3 * LINE)
    }

    pub(super) fn cursor(&self, reader: usize) -> &AtomicU64 {
        self.words.word(LINE * (LINES + reader))
    }

    /// The word at a position, which wraps around.
    pub(super) fn at(&self, position: u64) -> &AtomicU64 {
        self.words.word(LINE * (LINES + self.readers) + (position as usize & (self.capacity - 1)))
    }
}

#[cfg(not(loom))]
mod words {
    use disco_core::shared_memory::Segment;
    use disco_core::{Error, Result};

    use super::super::bell::Bell;
    use super::{Arc, AtomicU64, Memory};

    pub(super) type Words = Segment;

    impl Memory {
        /// A ring in a segment, which holds zeros if it is new.
        ///
        /// # Errors
        /// The segment is too small, or the capacity no power of two.
        pub fn new(segment: Arc<Segment>, readers: usize, capacity: usize) -> Result<Self> {
            let bytes = 8 * Self::words(readers, capacity);
            match capacity.is_power_of_two() && bytes <= segment.byte_len() {
                true => Ok(Self { words: segment, readers, capacity }),
                false => {
                    Err(Error::protocol(format!("a ring of {capacity} words for {readers} readers in {segment:?}")))
                }
            }
        }
    }

    pub(super) trait Access {
        fn word(&self, index: usize) -> &AtomicU64;
        fn bell(&self, index: usize) -> Bell<'_>;
    }

    impl Access for Segment {
        fn word(&self, index: usize) -> &AtomicU64 {
            &self.words()[index]
        }

        fn bell(&self, index: usize) -> Bell<'_> {
            Bell(&self.half_words()[2 * index])
        }
    }
}

#[cfg(loom)]
mod words {
    use super::super::bell::{Bell, Kernel};
    use super::{Arc, AtomicU64, Memory};
    use crate::ring::sync::AtomicU32;

    /// All words, and the bell.
    pub(super) struct Words(Box<[AtomicU64]>, AtomicU32, Kernel);

    impl Memory {
        pub(in super::super) fn new(readers: usize, capacity: usize) -> Self {
            let words = (0..Self::words(readers, capacity)).map(|_| AtomicU64::new(0)).collect();
            Self { words: Arc::new(Words(words, AtomicU32::new(0), Kernel::new())), readers, capacity }
        }
    }

    pub(super) trait Access {
        fn word(&self, index: usize) -> &AtomicU64;
        fn bell(&self, index: usize) -> Bell<'_>;
    }

    impl Access for Words {
        fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }

        fn bell(&self, _: usize) -> Bell<'_> {
            Bell(&self.1, &self.2)
        }
    }
}

use words::{Access as _, Words};
