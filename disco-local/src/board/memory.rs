//! The words of a board: a block of this process's memory, a shared segment, or a model's.

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

    /// Words that ranks share, whoever holds them.
    pub(in super::super) struct BoardMemory {
        first: NonNull<AtomicU64>,
        count: usize,
        owner: Owner,
    }

    /// Keeps the words where they are.
    enum Owner {
        Heap { _lines: Arc<[Line]> },
        Segment(Arc<Segment>),
    }

    /// Two cache lines, which processors fetch in pairs.
    #[repr(align(128))]
    struct Line {
        _words: [AtomicU64; LINE_WORDS],
    }

    // SAFETY: words are atomic, and the owner may be dropped on any thread.
    unsafe impl Send for BoardMemory {}
    // SAFETY: as above.
    unsafe impl Sync for BoardMemory {}

    impl BoardMemory {
        /// Zeros for ranks of this process.
        pub(in super::super) fn heap(count: usize) -> Self {
            let lines = Arc::new_zeroed_slice(count.div_ceil(LINE_WORDS));
            // SAFETY: all bits of a line are zero, which is what its words are made of.
            let lines: Arc<[Line]> = unsafe { lines.assume_init() };
            let first = NonNull::from(&*lines).cast();
            Self { first, count, owner: Owner::Heap { _lines: lines } }
        }

        /// The first words of a segment; none if it has fewer.
        pub(in super::super) fn shared(segment: Arc<Segment>, count: usize) -> Option<Self> {
            let first = NonNull::from(segment.words().get(..count)?).cast();
            Some(Self { first, count, owner: Owner::Segment(segment) })
        }

        /// What the words are in, if processes share it.
        pub(in super::super) fn segment(&self) -> Option<&Arc<Segment>> {
            match &self.owner {
                Owner::Heap { .. } => None,
                Owner::Segment(segment) => Some(segment),
            }
        }

        /// All of them.
        pub(in super::super) fn all(&self) -> &[AtomicU64] {
            // SAFETY: the owner holds `count` atomic words from `first` on, where they are, as long as `self` lives.
            unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
        }

        /// The one word that is half as wide, for a futex.
        pub(in super::super) fn futex(&self) -> Futex<'_> {
            let word: *const AtomicU32 = (&raw const self.all()[FUTEX]).cast();
            // SAFETY: the word lives as long as `self`, and nobody uses it as a whole one.
            Futex(unsafe { &*word })
        }
    }
}

#[cfg(loom)]
mod modelled {
    use super::super::futex::{Futex, Kernel};
    use crate::sync::{AtomicU32, AtomicU64};

    /// All words, and the bell.
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
