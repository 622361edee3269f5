//! A rank's part in a collective, and the points inside it.

use super::{Board, LINE_WORDS, ROWS, STEPS, lines, rank_area};
use crate::sync::{AtomicU64, Ordering};

/// The most that fits on a sheet, in bytes: what is not larger needs one handshake instead of two.
pub(crate) const MAX_POST_BYTES: usize = 8 * WORDS;
const WORDS: usize = if cfg!(loom) { 1 } else { 32 };

/// On a sheet: first what all collectives need, on the line that carries the number.
const NUMBER: usize = 0;
const SIGNATURE: usize = 1;
const COUNT: usize = 2;
const FIRST: usize = 3;
pub(super) const POST_WORDS: usize = lines(FIRST + WORDS);

/// What ranks must agree on before a sheet means anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) signature: u64,
    pub(crate) count: u64,
}

impl Board {
    /// Shows `rank`'s part in collective `number`: `words`, of which there are at most [`INLINE`] / 8. Numbers count from 1.
    pub(crate) fn post(&self, rank: usize, number: u64, head: Head, words: impl Iterator<Item = u64>) {
        let slot = self.slot(rank, number);
        slot[SIGNATURE].store(head.signature, Ordering::Relaxed);
        slot[COUNT].store(head.count, Ordering::Relaxed);
        for (cell, word) in slot[FIRST..].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        slot[NUMBER].store(number, Ordering::Release);
    }

    /// Writes counts for collective `number`, before it is posted: at most 2 a rank.
    pub(crate) fn write_row(&self, rank: usize, number: u64, counts: impl Iterator<Item = usize>) {
        for (cell, count) in self.row(rank, number).iter().zip(counts) {
            cell.store(count as u64, Ordering::Relaxed);
        }
    }

    /// Whether `rank`'s part in collective `number` can be read.
    pub(crate) fn has_posted(&self, rank: usize, number: u64) -> bool {
        self.slot(rank, number)[NUMBER].load(Ordering::Acquire) == number
    }

    /// What `rank` wants in collective `number`.
    pub(crate) fn head(&self, rank: usize, number: u64) -> Head {
        let slot = self.slot(rank, number);
        Head { signature: slot[SIGNATURE].load(Ordering::Relaxed), count: slot[COUNT].load(Ordering::Relaxed) }
    }

    /// Word `index` of `rank`'s sheet; 0 where there is none.
    pub(crate) fn posted_word(&self, rank: usize, number: u64, index: usize) -> u64 {
        self.slot(rank, number).get(FIRST + index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Count `index` of `rank`'s row; 0 where there is none.
    pub(crate) fn count(&self, rank: usize, number: u64, index: usize) -> usize {
        self.row(rank, number).get(index).map_or(0, |count| count.load(Ordering::Relaxed) as usize)
    }

    /// Fills `into` with the bytes of `rank`'s sheet from `start` on; zeros beyond its end.
    pub(crate) fn read(&self, rank: usize, number: u64, start: usize, into: &mut [u8]) {
        read_words(into, start, |index| self.posted_word(rank, number, index));
    }

    /// `rank` has come to a point inside a collective, its `step`th.
    pub(crate) fn step(&self, rank: usize, step: u64) {
        self.at(rank, STEPS).store(step, Ordering::Release);
    }

    /// Whether `rank` has come that far: what it wrote before is there.
    pub(crate) fn has_reached_step(&self, rank: usize, step: u64) -> bool {
        self.at(rank, STEPS).load(Ordering::Acquire) >= step
    }

    fn slot(&self, rank: usize, number: u64) -> &[AtomicU64] {
        self.span(rank_area(self.size, rank) + number as usize % 2 * POST_WORDS, POST_WORDS)
    }

    fn row(&self, rank: usize, number: u64) -> &[AtomicU64] {
        let row = row(self.size);
        self.span(rank_area(self.size, rank) + ROWS + number as usize % 2 * row, row)
    }
}

/// Words of a row for so many ranks.
pub(super) fn row(size: usize) -> usize {
    if cfg!(loom) { LINE_WORDS } else { lines(2 * size) }
}

/// Bytes as the words of a sheet; the last is filled up with zeros.
pub(crate) fn to_words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

/// Fills `into` with the bytes of these words from byte `start` on.
pub(super) fn read_words(mut into: &mut [u8], start: usize, word: impl Fn(usize) -> u64) {
    let (mut index, skip) = (start / 8, start % 8);
    if skip > 0 {
        let (head, rest) = into.split_at_mut(into.len().min(8 - skip));
        head.copy_from_slice(&word(index).to_ne_bytes()[skip..skip + head.len()]);
        (into, index) = (rest, index + 1);
    }
    for chunk in into.chunks_mut(8) {
        chunk.copy_from_slice(&word(index).to_ne_bytes()[..chunk.len()]);
        index += 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const HEAD: Head = Head { signature: 7, count: 20 };

    #[test]
    fn bytes_are_read_from_anywhere_on_a_sheet() {
        let board = Board::new(2);
        let bytes: Vec<u8> = (1..=20).collect();
        board.post(1, 5, HEAD, to_words(&bytes));
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
        board.read(1, 5, MAX_POST_BYTES - 4, &mut beyond);
        assert_eq!(beyond, [0; 8]);
    }

    #[test]
    fn two_collectives_can_be_told_apart() {
        let board = Board::new(1);
        board.post(0, 1, HEAD, [1].into_iter());
        board.post(0, 2, Head { count: 2, ..HEAD }, [2].into_iter());
        assert_eq!((board.posted_word(0, 1, 0), board.posted_word(0, 2, 0)), (1, 2));
        board.post(0, 3, HEAD, [3].into_iter());
        assert!(!board.has_posted(0, 1));
    }
}
