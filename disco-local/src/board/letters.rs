//! Letters on their way from one rank to another, in order, a few at a time.

use super::{Board, LINE, lines, pair};
use crate::sync::{AtomicU64, Ordering};

/// Letters that a pair of ranks may have under way.
pub(crate) const SLOTS: u64 = if cfg!(loom) { 1 } else { 4 };

/// Of a pair: on the sender's lines and on the receiver's.
const POSTED: usize = 0;
const FIRST: usize = 1;
const SENDER: usize = lines(FIRST + SLOTS as usize * LETTER);
const TAKEN: usize = SENDER;
pub(super) const PAIR: usize = SENDER + LINE;

const LETTER: usize = if cfg!(loom) { 1 } else { 3 };

/// What is in a letter: any words.
pub(crate) type Letter = [u64; LETTER];

impl Board {
    /// Letters that `from` has sent to `to`. Whoever sees this sees their words, and what they are about.
    pub(crate) fn posted(&self, from: usize, to: usize) -> u64 {
        self.pair(from, to)[POSTED].load(Ordering::Acquire)
    }

    /// Letters that `to` is done with. Whoever sees this may change what they are about.
    pub(crate) fn taken(&self, from: usize, to: usize) -> u64 {
        self.pair(from, to)[TAKEN].load(Ordering::Acquire)
    }

    /// Letters that `from` has sent to `to`, which is not done with them.
    pub(crate) fn under_way(&self, from: usize, to: usize) -> u64 {
        self.posted(from, to).wrapping_sub(self.taken(from, to))
    }

    /// Sends a letter. Less than [`SLOTS`] are under way.
    pub(crate) fn send(&self, from: usize, to: usize, letter: Letter) {
        let pair = self.pair(from, to);
        let number = pair[POSTED].load(Ordering::Relaxed);
        for (cell, word) in slot(pair, number).iter().zip(letter) {
            cell.store(word, Ordering::Relaxed);
        }
        pair[POSTED].store(number.wrapping_add(1), Ordering::Release);
    }

    /// The next letter for `to`, and its number.
    pub(crate) fn next_letter(&self, from: usize, to: usize) -> Option<(u64, Letter)> {
        let pair = self.pair(from, to);
        let number = pair[TAKEN].load(Ordering::Relaxed);
        let is_there = pair[POSTED].load(Ordering::Acquire) != number;
        let slot = slot(pair, number);
        is_there.then(|| (number, std::array::from_fn(|index| slot[index].load(Ordering::Relaxed))))
    }

    /// `to` is done with the next letter.
    pub(crate) fn take(&self, from: usize, to: usize, number: u64) {
        self.pair(from, to)[TAKEN].store(number.wrapping_add(1), Ordering::Release);
    }

    fn pair(&self, from: usize, to: usize) -> &[AtomicU64] {
        self.span(pair(self.size, from, to), PAIR)
    }
}

fn slot(pair: &[AtomicU64], number: u64) -> &[AtomicU64] {
    let start = FIRST + (number % SLOTS) as usize * LETTER;
    &pair[start..start + LETTER]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn letters_of_a_pair_stay_in_order() {
        let board = Board::new(3);
        assert_eq!(board.next_letter(0, 2), None);
        for round in 0..3 {
            for letter in 0..SLOTS {
                board.send(0, 2, [round, letter, 7]);
            }
            assert_eq!((board.under_way(0, 2), board.under_way(2, 0)), (SLOTS, 0));
            for letter in 0..SLOTS {
                let (number, found) = board.next_letter(0, 2).unwrap();
                assert_eq!((number, found), (round * SLOTS + letter, [round, letter, 7]));
                board.take(0, 2, number);
            }
            assert_eq!(board.under_way(0, 2), 0);
        }
    }
}
