//! Layout of the ring in shared memory.

use super::bell::Bell;
use crate::ring::sync::{Arc, AtomicU64};

/// Words of a pair of cache lines, which processors prefetch together.
const CACHE_LINE_WORDS: usize = 16;
/// Pairs of cache lines before those of the readers.
const HEADER_LINES: usize = 5;
/// Pairs of cache lines of each reader: one for its cursor, one for its reply and whether it sleeps.
const READER_LINES: usize = 2;

/// The memory of one ring, which writer and readers share.
#[derive(Clone)]
pub struct Memory {
    words: Arc<SharedWords>,
    readers: usize,
    /// A power of two.
    capacity: usize,
}

impl Memory {
    /// Number of words of 8 bytes that a ring of `capacity` words for `readers` readers takes.
    pub fn words(readers: usize, capacity: usize) -> usize {
        CACHE_LINE_WORDS * (HEADER_LINES + READER_LINES * readers) + capacity
    }

    pub(crate) fn readers(&self) -> usize {
        self.readers
    }

    /// Capacity of the ring in words.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    pub(super) fn head(&self) -> &AtomicU64 {
        self.words.word(0)
    }

    pub(super) fn bell(&self) -> Bell<'_> {
        self.words.bell(CACHE_LINE_WORDS)
    }

    /// Number of readers that sleep.
    pub(super) fn sleepers(&self) -> &AtomicU64 {
        self.words.word(2 * CACHE_LINE_WORDS)
    }

    pub(super) fn starved(&self) -> &AtomicU64 {
        self.words.word(3 * CACHE_LINE_WORDS)
    }

    /// Number of threads that poll for replies.
    #[cfg(not(loom))]
    pub(crate) fn polling(&self) -> &AtomicU64 {
        self.words.word(4 * CACHE_LINE_WORDS)
    }

    pub(super) fn cursor(&self, reader: usize) -> &AtomicU64 {
        self.words.word(CACHE_LINE_WORDS * (HEADER_LINES + READER_LINES * reader))
    }

    /// The number of the command that a reader has replied to; 0 once it is taken.
    #[cfg(not(loom))]
    pub(crate) fn reply(&self, reader: usize) -> &AtomicU64 {
        self.words.word(CACHE_LINE_WORDS * (HEADER_LINES + READER_LINES * reader + 1))
    }

    /// 1 while a reader sleeps. Beside its reply, which the thread that sends commands polls for.
    pub(super) fn sleeps(&self, reader: usize) -> &AtomicU64 {
        self.words.word(CACHE_LINE_WORDS * (HEADER_LINES + READER_LINES * reader + 1) + 1)
    }

    /// The word at a position, modulo the capacity.
    pub(super) fn at(&self, position: u64) -> &AtomicU64 {
        let start = CACHE_LINE_WORDS * (HEADER_LINES + READER_LINES * self.readers);
        self.words.word(start + (position as usize & (self.capacity - 1)))
    }
}

#[cfg(not(loom))]
mod words {
    use disco_core::shared_memory::Segment;
    use disco_core::{Error, Result};

    use super::super::bell::Bell;
    use super::{Arc, AtomicU64, Memory};

    pub(super) type SharedWords = Segment;

    impl Memory {
        /// Maps a ring to a segment. The segment of a new ring must be zeroed.
        ///
        /// # Errors
        /// The segment is too small, or the capacity is not a power of two.
        pub fn new(segment: Arc<Segment>, readers: usize, capacity: usize) -> Result<Self> {
            let bytes = 8 * Self::words(readers, capacity);
            if capacity.is_power_of_two() && bytes <= segment.byte_len() {
                Ok(Self { words: segment, readers, capacity })
            } else {
                Err(Error::protocol(format!("a ring of {capacity} words for {readers} readers in {segment:?}")))
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

    /// All words, the futex word and the modelled kernel.
    pub(super) struct SharedWords(Box<[AtomicU64]>, AtomicU32, Kernel);

    impl Memory {
        pub(in super::super) fn new(readers: usize, capacity: usize) -> Self {
            let words = (0..Self::words(readers, capacity)).map(|_| AtomicU64::new(0)).collect();
            Self { words: Arc::new(SharedWords(words, AtomicU32::new(0), Kernel::new())), readers, capacity }
        }
    }

    pub(super) trait Access {
        fn word(&self, index: usize) -> &AtomicU64;
        fn bell(&self, index: usize) -> Bell<'_>;
    }

    impl Access for SharedWords {
        fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }

        fn bell(&self, _: usize) -> Bell<'_> {
            Bell(&self.1, &self.2)
        }
    }
}

use words::{Access as _, SharedWords};
