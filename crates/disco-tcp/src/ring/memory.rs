//! The memory of a ring: a part of a segment, or loom's models of its words and bytes.

#![allow(unsafe_code)]

#[cfg(not(loom))]
pub(crate) use here::Memory;
#[cfg(loom)]
pub(crate) use modelled::Memory;

/// Bytes of the stream that a ring has room for.
#[cfg(not(loom))]
pub(super) const CAPACITY: usize = 256 << 10;
#[cfg(loom)]
pub(super) const CAPACITY: usize = 4;

/// The words of the header.
#[derive(Clone, Copy)]
pub(super) enum Word {
    Written,
    Read,
    ReaderSleeps,
    WriterSleeps,
}

#[cfg(not(loom))]
mod here {
    use std::ptr;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use disco_core::shared_memory::Segment;

    use super::{CAPACITY, Word};

    /// Bytes between two words of the header: a pair of cache lines.
    const LINE_BYTES: usize = 128;
    const HEADER_BYTES: usize = 4 * LINE_BYTES;

    /// A ring in a segment.
    pub(crate) struct Memory {
        segment: Arc<Segment>,
        /// Where the ring begins: a multiple of [`LINE_BYTES`].
        start: usize,
    }

    impl Memory {
        /// Bytes of a ring in its segment.
        pub(crate) const BYTES: usize = HEADER_BYTES + CAPACITY;

        /// The ring at `start` of a segment.
        pub(crate) fn new(segment: Arc<Segment>, start: usize) -> Self {
            Self { segment, start }
        }

        pub(in super::super) fn word(&self, word: Word) -> &AtomicU64 {
            &self.segment.words()[(self.start + word as usize * LINE_BYTES) / size_of::<u64>()]
        }

        /// The address of `count` bytes of the content from byte `at` on, which are in the segment.
        fn content(&self, at: usize, count: usize) -> *mut u8 {
            let start = self.start + HEADER_BYTES + at;
            assert!(at + count <= CAPACITY && start + count <= self.segment.byte_len(), "bytes outside of the ring");
            self.segment.pointer().wrapping_add(start)
        }

        /// Writes the content from byte `at` on. The other end must not read these bytes meanwhile.
        pub(in super::super) fn write(&self, at: usize, bytes: &[u8]) {
            let to = self.content(at, bytes.len());
            // SAFETY: the bytes from `to` on are in the segment. The other end may be another process, which accesses them
            // meanwhile only if it breaks the rules of the ring, and then they have any value.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }

        /// Reads the content from byte `at` on. The other end must not write these bytes meanwhile.
        pub(in super::super) fn read(&self, at: usize, into: &mut [u8]) {
            let from = self.content(at, into.len());
            // SAFETY: as in `write`.
            unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        }
    }
}

#[cfg(loom)]
mod modelled {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::{CAPACITY, Word};

    /// A ring, of whose bytes loom reports accesses of both ends at the same time.
    #[derive(Clone)]
    pub(crate) struct Memory(Arc<Parts>);

    struct Parts {
        words: [AtomicU64; 4],
        content: [UnsafeCell<u8>; CAPACITY],
    }

    // SAFETY: loom fails a model whose threads access a cell at the same time.
    unsafe impl Send for Parts {}
    // SAFETY: as above.
    unsafe impl Sync for Parts {}

    impl Memory {
        pub(in super::super) fn new() -> Self {
            let words = [(); 4].map(|()| AtomicU64::new(0));
            Self(Arc::new(Parts { words, content: [(); CAPACITY].map(|()| UnsafeCell::new(0)) }))
        }

        pub(in super::super) fn word(&self, word: Word) -> &AtomicU64 {
            &self.0.words[word as usize]
        }

        pub(in super::super) fn write(&self, at: usize, bytes: &[u8]) {
            for (cell, byte) in self.0.content[at..][..bytes.len()].iter().zip(bytes) {
                // SAFETY: the pointer is that of a cell.
                cell.with_mut(|cell| unsafe { *cell = *byte });
            }
        }

        pub(in super::super) fn read(&self, at: usize, into: &mut [u8]) {
            for (cell, byte) in self.0.content[at..][..into.len()].iter().zip(into) {
                // SAFETY: the pointer is that of a cell.
                *byte = cell.with(|cell| unsafe { *cell });
            }
        }
    }
}
