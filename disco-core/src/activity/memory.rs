//! The memory of an activity: words that only the worker writes, and that other threads and processes may read.
//!
//! ```text
//! word 0   number of the last command received      4, 5  ticks and nanoseconds when the memory was made
//!      1   number of the last command finished      6     words of `names` in use
//!      2   the function that runs, or 0: name       7     0
//!          | 1 << 32 for a time limit of its own    8     names: for each its length in bytes | kind of communicator << 32,
//!      3   number of records begun                        then the bytes
//! then the records, 8 words each: record `n` is at place `n` modulo the number of places (see `record`)
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::clock::Reading;
use super::progress::TimeLimit;
use super::record::{CommKind, RECORD_WORDS, RawRecord};
use crate::shared_memory::Segment;

/// Words for names: 16 KiB. A name that does not fit is replaced by none in records.
const NAME_WORDS: usize = 2048;
/// Words before the records.
const HEAD_WORDS: usize = NAMES + NAME_WORDS;

const RECEIVED: usize = 0;
const FINISHED: usize = 1;
const INSIDE: usize = 2;
const BEGUN: usize = 3;
const FIRST: usize = 4;
const NAMES_USED: usize = 6;
const NAMES: usize = 8;

/// Words of an activity, in this process's memory or in memory that processes share.
#[derive(Debug)]
pub(super) enum Memory {
    Own(Box<[AtomicU64]>),
    /// The words from `start`.
    Shared {
        segment: Arc<Segment>,
        start: usize,
        words: usize,
    },
}

impl Memory {
    /// Number of words with `records` places for records, a power of two.
    pub(super) const fn words_for(records: usize) -> usize {
        HEAD_WORDS + records * RECORD_WORDS
    }

    /// New memory of this process.
    pub(super) fn own(records: usize) -> Self {
        Self::Own((0..Self::words_for(records)).map(|_| AtomicU64::new(0)).collect())
    }

    /// The memory at word `start` of `segment`, which must contain it.
    pub(super) fn shared(segment: Arc<Segment>, start: usize, records: usize) -> Option<Self> {
        let words = Self::words_for(records);
        (segment.words().len() >= start + words).then_some(Self::Shared { segment, start, words })
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        match self {
            Self::Own(words) => words,
            Self::Shared { segment, start, words } => &segment.words()[*start..*start + *words],
        }
    }

    #[inline]
    fn load(&self, word: usize) -> u64 {
        self.words()[word].load(Ordering::Relaxed)
    }

    #[inline]
    fn store(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Relaxed);
    }

    /// Number of places for records.
    pub(super) fn places(&self) -> usize {
        (self.words().len() - HEAD_WORDS) / RECORD_WORDS
    }

    /// Notes the time at which records begin.
    pub(super) fn set_first_reading(&self, reading: Reading) {
        self.store(FIRST, reading.ticks);
        self.store(FIRST + 1, reading.nanoseconds);
    }

    pub(super) fn first_reading(&self) -> Reading {
        Reading { ticks: self.load(FIRST), nanoseconds: self.load(FIRST + 1) }
    }

    #[inline]
    pub(super) fn received(&self) -> u64 {
        self.load(RECEIVED)
    }

    #[inline]
    pub(super) fn set_received(&self, number: u64) {
        self.store(RECEIVED, number);
    }

    pub(super) fn finished(&self) -> u64 {
        self.load(FINISHED)
    }

    #[inline]
    pub(super) fn set_finished(&self, number: u64) {
        self.store(FINISHED, number);
    }

    /// The name of the function that the worker is inside, or 0, and whose time limit holds there.
    pub(super) fn inside(&self) -> (u32, TimeLimit) {
        let word = self.load(INSIDE);
        (word as u32, if word >> 32 == 0 { TimeLimit::Call } else { TimeLimit::Own })
    }

    #[inline]
    pub(super) fn set_inside(&self, name: u32, limit: TimeLimit) {
        self.store(INSIDE, u64::from(name) | (limit as u64) << 32);
    }

    /// Number of records begun so far.
    #[inline]
    pub(super) fn begun(&self) -> u64 {
        self.load(BEGUN)
    }

    /// Adds a name. Returns false if there is no room.
    pub(super) fn add_name(&self, name: &str, kind: CommKind) -> bool {
        let used = self.load(NAMES_USED) as usize;
        let words = 1 + name.len().div_ceil(8);
        if used + words > NAME_WORDS {
            return false;
        }
        self.store(NAMES + used, name.len() as u64 | u64::from(kind.number()) << 32);
        for (word, bytes) in name.as_bytes().chunks(8).enumerate() {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            self.store(NAMES + used + 1 + word, u64::from_le_bytes(whole));
        }
        // Readers see all words below this one.
        self.words()[NAMES_USED].store((used + words) as u64, Ordering::Release);
        true
    }

    /// The words of the names, for [`parse_names`].
    pub(super) fn name_words(&self) -> Vec<u64> {
        let used = self.words()[NAMES_USED].load(Ordering::Acquire).min(NAME_WORDS as u64) as usize;
        (0..used).map(|word| self.load(NAMES + word)).collect()
    }

    /// The words of record `number`'s place.
    #[inline]
    fn place(&self, number: u64) -> &[AtomicU64; RECORD_WORDS] {
        let (places, _) = self.words()[HEAD_WORDS..].as_chunks::<RECORD_WORDS>();
        // A power of two.
        &places[number as usize & (places.len() - 1)]
    }

    /// Begins the next record, in place of the oldest one. Returns its number. Called on one thread.
    #[inline]
    pub(super) fn begin(&self, record: RawRecord) -> u64 {
        let number = self.load(BEGUN) + 1;
        let place = self.place(number);
        let RawRecord(words) = record;
        // Sequence lock: a reader that sees one of the new words also sees that the place is being changed.
        place[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        // By index, because the compiler does not unroll a loop over `skip(1)`.
        for word in 1..RECORD_WORDS {
            place[word].store(words[word], Ordering::Relaxed);
        }
        place[0].store(number, Ordering::Release);
        self.store(BEGUN, number);
        number
    }

    /// Changes record `number`, unless a later record has its place. Called on the thread that began it.
    #[inline]
    pub(super) fn change(&self, number: u64, change: impl FnOnce(&[AtomicU64; RECORD_WORDS])) {
        let place = self.place(number);
        if place[0].load(Ordering::Relaxed) == number {
            change(place);
        }
    }

    /// Record `number`, if it is there. While the worker changes a record, some words may be older than others; they
    /// are never those of another record.
    pub(super) fn read(&self, number: u64) -> Option<RawRecord> {
        let place = self.place(number);
        if place[0].load(Ordering::Acquire) != number {
            return None;
        }
        let words = std::array::from_fn(|word| place[word].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (place[0].load(Ordering::Relaxed) == number).then_some(RawRecord(words))
    }
}

/// The names in the order in which they were added. The words may be those of another process, and contain anything.
pub(super) fn parse_names(mut words: &[u64]) -> Vec<(Arc<str>, CommKind)> {
    let mut names = Vec::new();
    while let Some((head, rest)) = words.split_first() {
        let (len, kind) = (*head as u32 as usize, CommKind::of((head >> 32) as u32));
        let len = len.min(8 * rest.len());
        let (name, rest) = rest.split_at(len.div_ceil(8));
        let mut bytes: Vec<u8> = name.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(len);
        names.push((String::from_utf8_lossy(&bytes).into(), kind));
        words = rest;
    }
    names
}
