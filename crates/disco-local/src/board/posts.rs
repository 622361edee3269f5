//! The posts of ranks for a collective, and the synchronisations inside it.

use super::{Board, LINE_WORDS, ROWS, STEPS, lines, rank_area};
use crate::sync::{AtomicU64, Ordering};

/// The most data of a post, in bytes. Longer data are slower to store word by word than to copy to an area beside the posts.
pub(crate) const MAX_POST_BYTES: usize = 8 * WORDS;
const WORDS: usize = if cfg!(loom) { 1 } else { 8 };

/// Offsets in a post. The fields that all collectives need share the line of the number.
const NUMBER: usize = 0;
const SIGNATURE: usize = 1;
const COUNT: usize = 2;
const FIRST: usize = 3;
pub(super) const POST_WORDS: usize = lines(FIRST + WORDS);

/// The parameters of a collective that must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) signature: u64,
    pub(crate) count: u64,
}

impl Board {
    /// Posts `words` of `rank` for collective `number`: at most [`MAX_POST_BYTES`] / 8 words. The first collective is
    /// number 1.
    pub(crate) fn post(&self, rank: usize, number: u64, head: Head, words: impl Iterator<Item = u64>) {
        let slot = self.slot(rank, number);
        slot[SIGNATURE].store(head.signature, Ordering::Relaxed);
        slot[COUNT].store(head.count, Ordering::Relaxed);
        for (cell, word) in slot[FIRST..].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        slot[NUMBER].store(number, Ordering::Release);
    }

    /// Writes the counts of `rank` for collective `number`, before its post: at most two for each rank of the group.
    pub(crate) fn write_row(&self, rank: usize, number: u64, counts: impl Iterator<Item = usize>) {
        for (cell, count) in self.row(rank, number).iter().zip(counts) {
            cell.store(count as u64, Ordering::Relaxed);
        }
    }

    /// Whether the post of `rank` for collective `number` can be read.
    pub(crate) fn has_posted(&self, rank: usize, number: u64) -> bool {
        self.slot(rank, number)[NUMBER].load(Ordering::Acquire) == number
    }

    /// The parameters of `rank` in collective `number`.
    pub(crate) fn head(&self, rank: usize, number: u64) -> Head {
        let slot = self.slot(rank, number);
        Head { signature: slot[SIGNATURE].load(Ordering::Relaxed), count: slot[COUNT].load(Ordering::Relaxed) }
    }

    /// Word `index` of `rank`'s post; 0 beyond its end.
    pub(crate) fn posted_word(&self, rank: usize, number: u64, index: usize) -> u64 {
        self.slot(rank, number).get(FIRST + index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Count `index` of `rank`'s row; 0 beyond its end.
    pub(crate) fn count(&self, rank: usize, number: u64, index: usize) -> usize {
        self.row(rank, number).get(index).map_or(0, |count| count.load(Ordering::Relaxed) as usize)
    }

    /// Fills `into` with the bytes of `rank`'s post from `start` on, and zeros beyond its end.
    pub(crate) fn read(&self, rank: usize, number: u64, start: usize, into: &mut [u8]) {
        let words = &self.slot(rank, number)[FIRST..];
        read_words(into, start, |index| words.get(index).map_or(0, |word| word.load(Ordering::Relaxed)));
    }

    /// Marks that `rank` has reached synchronisation `step`.
    pub(crate) fn step(&self, rank: usize, step: u64) {
        self.at(rank, STEPS).store(step, Ordering::Release);
    }

    /// Whether `rank` has reached synchronisation `step`. If so, all its earlier writes are visible.
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

/// Number of words of a row for `size` ranks.
pub(super) fn row(size: usize) -> usize {
    if cfg!(loom) { LINE_WORDS } else { lines(2 * size) }
}

/// Converts bytes to words; the last word is padded with zeros.
pub(crate) fn to_words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    })
}

/// Fills `into` with the bytes of the words that `word` returns by index, from byte `start` on.
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
    fn any_range_of_a_post_can_be_read() {
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
    fn posts_of_two_successive_collectives_are_both_readable() {
        let board = Board::new(1);
        board.post(0, 1, HEAD, [1].into_iter());
        board.post(0, 2, Head { count: 2, ..HEAD }, [2].into_iter());
        assert_eq!((board.posted_word(0, 1, 0), board.posted_word(0, 2, 0)), (1, 2));
        board.post(0, 3, HEAD, [3].into_iter());
        assert!(!board.has_posted(0, 1));
    }
}
