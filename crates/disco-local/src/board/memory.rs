//! The memory of a board: heap memory of this process, a shared segment, or words of a loom model.

#![cfg_attr(not(loom), allow(unsafe_code))]

#[cfg(not(loom))]
pub(super) use here::BoardMemory;
#[cfg(loom)]
pub(super) use modelled::BoardMemory;

#[cfg(not(loom))]
mod here {
    use std::ptr::NonNull;
    use std::slice;
    use std::sync::Arc;

    use disco_core::shared_memory::Segment;

    use super::super::{FUTEX, LINE_WORDS, futex::Futex};
    use crate::sync::{AtomicU32, AtomicU64};

    /// The words of a board, and their owner.
    pub(in super::super) struct BoardMemory {
        first: NonNull<AtomicU64>,
        count: usize,
        owner: Owner,
    }

    /// Keeps the words at their address.
    enum Owner {
        Heap { _lines: Arc<[Line]> },
        Segment(Arc<Segment>),
    }

    /// Two cache lines, which processors prefetch in pairs.
    #[repr(align(128))]
    struct Line {
        _words: [AtomicU64; LINE_WORDS],
    }

    // SAFETY: words are atomic, and the owner may be dropped on any thread.
    unsafe impl Send for BoardMemory {}
    // SAFETY: a shared reference gives access to atomic words and to `Arc<Segment>`, which is Sync.
    unsafe impl Sync for BoardMemory {}

    impl BoardMemory {
        /// Zeroed words on the heap, for ranks of this process.
        pub(in super::super) fn heap(count: usize) -> Self {
            let lines = Arc::new_zeroed_slice(count.div_ceil(LINE_WORDS));
            // SAFETY: a line consists of atomic integers, for which zero bits are a valid value.
            let lines: Arc<[Line]> = unsafe { lines.assume_init() };
            let first = NonNull::from(&*lines).cast();
            Self { first, count, owner: Owner::Heap { _lines: lines } }
        }

        /// The first `count` words of a segment; none if it has fewer.
        pub(in super::super) fn shared(segment: Arc<Segment>, count: usize) -> Option<Self> {
            let first = NonNull::from(segment.words().get(..count)?).cast();
            Some(Self { first, count, owner: Owner::Segment(segment) })
        }

        /// The segment of the words, if they are in one.
        pub(in super::super) fn segment(&self) -> Option<&Arc<Segment>> {
            match &self.owner {
                Owner::Heap { .. } => None,
                Owner::Segment(segment) => Some(segment),
            }
        }

        /// All words.
        pub(in super::super) fn all(&self) -> &[AtomicU64] {
            // SAFETY: the owner keeps `count` atomic words from `first` on valid and in place as long as `self` lives.
            unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
        }

        /// The futex: a 32-bit half of word [`FUTEX`].
        pub(in super::super) fn futex(&self) -> Futex<'_> {
            let word: *const AtomicU32 = (&raw const self.all()[FUTEX]).cast();
            // SAFETY: the word lives as long as `self`, is aligned for a `u64`, and is never accessed as a whole `u64`.
            Futex(unsafe { &*word })
        }
    }
}

#[cfg(loom)]
mod modelled {
    use super::super::futex::{Futex, Kernel};
    use crate::sync::{AtomicU32, AtomicU64};

    /// All words, the futex word, and the modelled kernel.
    pub(in super::super) struct BoardMemory(Box<[AtomicU64]>, AtomicU32, Kernel);

    impl BoardMemory {
        pub(in super::super) fn heap(count: usize) -> Self {
            Self((0..count).map(|_| AtomicU64::new(0)).collect(), AtomicU32::new(0), Kernel::new())
        }

        pub(in super::super) fn all(&self) -> &[AtomicU64] {
            &self.0
        }

        pub(in super::super) fn futex(&self) -> Futex<'_> {
            Futex(&self.1, &self.2)
        }
    }
}
