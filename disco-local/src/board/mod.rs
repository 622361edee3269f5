//! What ranks show each other without a lock.
//!
//! ```text
//! place of one rank     written by it alone, read by all
//!   sheets[0], [1]      its part in collective `number`, on sheet `number % 2`:
//!                       number │ signature │ count │ words: up to INLINE bytes, or addresses
//!   rows[0], [1]        counts by rank, for the V-forms
//!   finished            the last collective whose memory it is done with
//!   touching            whether it may be touching published memory now
//! ```
//!
//! The number is written last and read first, so whoever sees it sees the sheet. (It is sequentially consistent for the
//! sake of those who [sleep](crate::group::Group::awake).) Sheets need no lock
//! and no second handshake: a rank writes sheet `number % 2` again for `number + 2`, when all have posted `number + 1`,
//! which they do after they have read `number`. All words are atomic; those that are addresses are good among the threads of
//! one process, which all run this code.
//!
//! `touching` and `failed` are a handshake after Dekker: a rank says that it touches, then looks for a failure; a rank
//! that leaves after a failure makes it known, then looks for who touches. One of them sees the other.

#[cfg(all(test, loom))]
mod loom_models;

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// The most that fits on a sheet, in bytes: what is not larger needs one handshake instead of two.
pub(crate) const INLINE: usize = 8 * WORDS;
const WORDS: usize = if cfg!(loom) { 1 } else { 32 };

/// The places of all ranks.
pub(crate) struct Board {
    places: Box<[Place]>,
    failed: AtomicBool,
}

struct Place {
    sheets: [Sheet; 2],
    rows: [Box<[AtomicU64]>; 2],
    finished: Line<AtomicU64>,
    touching: Line<AtomicBool>,
}

/// First what all collectives need, on the line that carries the number.
#[repr(align(128))]
struct Sheet {
    number: AtomicU64,
    signature: AtomicU64,
    count: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Something on cache lines of its own (two of them: processors fetch lines in pairs).
#[repr(align(128))]
struct Line<T>(T);

/// What ranks must agree on before a sheet means anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) signature: u64,
    pub(crate) count: u64,
}

impl Board {
    /// Places for `size` ranks. Numbers count from 1.
    pub(crate) fn new(size: usize) -> Self {
        let sheet = || Sheet {
            number: AtomicU64::new(0),
            signature: AtomicU64::new(0),
            count: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        let row = || (0..2 * size).map(|_| AtomicU64::new(0)).collect();
        let place = |_| Place {
            sheets: [sheet(), sheet()],
            rows: [row(), row()],
            finished: Line(AtomicU64::new(0)),
            touching: Line(AtomicBool::new(false)),
        };
        Self { places: (0..size).map(place).collect(), failed: AtomicBool::new(false) }
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.places.len()
    }

    /// Shows `rank`'s part in collective `number`: `words`, of which there are at most [`INLINE`] / 8.
    pub(crate) fn post(&self, rank: usize, number: u64, head: Head, words: impl Iterator<Item = u64>) {
        let sheet = self.sheet(rank, number);
        sheet.signature.store(head.signature, Ordering::Relaxed);
        sheet.count.store(head.count, Ordering::Relaxed);
        for (cell, word) in sheet.words.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        sheet.number.swap(number, Ordering::SeqCst);
    }

    /// Writes counts for collective `number`, before it is posted: at most 2 a rank.
    pub(crate) fn write_row(&self, rank: usize, number: u64, counts: impl Iterator<Item = usize>) {
        for (cell, count) in self.places[rank].rows[number as usize % 2].iter().zip(counts) {
            cell.store(count as u64, Ordering::Relaxed);
        }
    }

    /// Whether `rank`'s part in collective `number` can be read.
    pub(crate) fn has_posted(&self, rank: usize, number: u64) -> bool {
        self.sheet(rank, number).number.load(Ordering::SeqCst) == number
    }

    /// What `rank` wants in collective `number`.
    pub(crate) fn head(&self, rank: usize, number: u64) -> Head {
        let sheet = self.sheet(rank, number);
        Head { signature: sheet.signature.load(Ordering::Relaxed), count: sheet.count.load(Ordering::Relaxed) }
    }

    /// Word `index` of `rank`'s sheet; 0 where there is none.
    pub(crate) fn word(&self, rank: usize, number: u64, index: usize) -> u64 {
        self.sheet(rank, number).words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Count `index` of `rank`'s row; 0 where there is none.
    pub(crate) fn count(&self, rank: usize, number: u64, index: usize) -> usize {
        let row = &self.places[rank].rows[number as usize % 2];
        row.get(index).map_or(0, |count| count.load(Ordering::Relaxed) as usize)
    }

    /// Fills `into` with the bytes of `rank`'s sheet from `start` on; zeros beyond its end.
    pub(crate) fn read(&self, rank: usize, number: u64, start: usize, into: &mut [u8]) {
        let (mut index, skip) = (start / 8, start % 8);
        let mut into = into;
        if skip > 0 {
            let (head, rest) = into.split_at_mut(into.len().min(8 - skip));
            head.copy_from_slice(&self.word(rank, number, index).to_ne_bytes()[skip..skip + head.len()]);
            (into, index) = (rest, index + 1);
        }
        for chunk in into.chunks_mut(8) {
            chunk.copy_from_slice(&self.word(rank, number, index).to_ne_bytes()[..chunk.len()]);
            index += 1;
        }
    }

    /// `rank` is done with the memory of collective `number`.
    pub(crate) fn finish(&self, rank: usize, number: u64) {
        self.places[rank].finished.0.swap(number, Ordering::SeqCst);
    }

    /// Whether `rank` is done with the memory of collective `number`.
    pub(crate) fn has_finished(&self, rank: usize, number: u64) -> bool {
        self.places[rank].finished.0.load(Ordering::SeqCst) >= number
    }

    /// `rank` wants to touch published memory. If this is true it may, until [`Board::let_go`].
    pub(crate) fn touch(&self, rank: usize) -> bool {
        let touching = &self.places[rank].touching.0;
        touching.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may = !self.failed.load(Ordering::Relaxed);
        if !may {
            touching.store(false, Ordering::Release);
        }
        may
    }

    /// `rank` touches nothing any more.
    pub(crate) fn let_go(&self, rank: usize) {
        self.places[rank].touching.0.store(false, Ordering::Release);
    }

    /// From now on nobody starts to touch anything.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether something failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether `rank` may be touching published memory. Once all have been seen not to after a failure, nobody will.
    pub(crate) fn is_touching(&self, rank: usize) -> bool {
        self.places[rank].touching.0.load(Ordering::Acquire)
    }

    fn sheet(&self, rank: usize, number: u64) -> &Sheet {
        &self.places[rank].sheets[number as usize % 2]
    }
}

/// Bytes as the words of a sheet; the last is filled up with zeros.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const HEAD: Head = Head { signature: 7, count: 20 };

    #[test]
    fn bytes_are_read_from_anywhere_on_a_sheet() {
        let board = Board::new(2);
        let bytes: Vec<u8> = (1..=20).collect();
        board.post(1, 5, HEAD, words(&bytes));
        assert!(board.has_posted(1, 5) && !board.has_posted(0, 5) && !board.has_posted(1, 3));
        assert_eq!(board.head(1, 5), HEAD);
        for start in 0..20 {
            for end in start..=20 {
                let mut read = vec![0; end - start];
                board.read(1, 5, start, &mut read);
                assert_eq!(read, bytes[start..end]);
            }
        }
        let mut beyond = [1; 8];
        board.read(1, 5, INLINE - 4, &mut beyond);
        assert_eq!(beyond, [0; 8]);
    }

    #[test]
    fn two_collectives_can_be_told_apart() {
        let board = Board::new(1);
        board.post(0, 1, HEAD, [1].into_iter());
        board.post(0, 2, Head { count: 2, ..HEAD }, [2].into_iter());
        assert_eq!((board.word(0, 1, 0), board.word(0, 2, 0)), (1, 2));
        board.post(0, 3, HEAD, [3].into_iter());
        assert!(!board.has_posted(0, 1));
    }
}
