//! Letters on their way from one rank to another, in order, a few at a time.

use super::sheets::fill;
use super::{Board, LINE, pair};
use crate::sync::{AtomicU64, Ordering};

/// Letters that a pair of ranks may have under way.
pub(crate) const SLOTS: u64 = if cfg!(loom) { 1 } else { 4 };

/// Of a pair: what the sender alone looks at, as a rule, what the receiver writes, and the slots, a line each.
const POSTED: usize = 0;
const SEEN: usize = 1;
const TAKEN: usize = LINE;
const FIRST: usize = 2 * LINE;
pub(super) const PAIR: usize = FIRST + SLOTS as usize * LINE;

/// In a slot: the number of its letter, from 1 on, written last; what the letter says; what is enclosed.
const STAMP: usize = 0;
const LETTER: usize = if cfg!(loom) { 1 } else { 3 };
const ENCLOSURE: usize = 1 + LETTER;

/// What is in a letter: any words.
pub(crate) type Letter = [u64; LETTER];

/// The most that can be enclosed, in bytes.
#[cfg(not(loom))]
pub(crate) const ENCLOSED: usize = 8 * (LINE - ENCLOSURE);

impl Board {
    /// Letters that `from` has sent to `to`, which is not done with them. Whoever sees that one is taken may change what it is
    /// about.
    pub(crate) fn under_way(&self, from: usize, to: usize) -> u64 {
        let pair = self.pair(from, to);
        pair[POSTED].load(Ordering::Relaxed).wrapping_sub(pair[TAKEN].load(Ordering::Acquire))
    }

    /// Whether less than `room` letters are under way, for `from` alone: it looks at the receiver's line as seldom as it can.
    pub(crate) fn has_room(&self, from: usize, to: usize, room: u64) -> bool {
        let pair = self.pair(from, to);
        let (posted, seen) = (pair[POSTED].load(Ordering::Relaxed), &pair[SEEN]);
        let is_free = |taken| posted.wrapping_sub(taken) < room;
        is_free(seen.load(Ordering::Relaxed)) || {
            let taken = pair[TAKEN].load(Ordering::Acquire);
            seen.store(taken, Ordering::Relaxed);
            is_free(taken)
        }
    }

    /// The number of the next letter from `from` to `to`, for `from` alone.
    pub(crate) fn next_number(&self, from: usize, to: usize) -> u64 {
        self.pair(from, to)[POSTED].load(Ordering::Relaxed)
    }

    /// Sends a letter, with at most [`ENCLOSED`] bytes in it. Less than [`SLOTS`] are under way.
    pub(crate) fn send(&self, from: usize, to: usize, letter: Letter, enclosed: impl Iterator<Item = u64>) {
        let pair = self.pair(from, to);
        let number = pair[POSTED].load(Ordering::Relaxed);
        let slot = slot(pair, number);
        for (cell, word) in slot[STAMP + 1..].iter().zip(letter.into_iter().chain(enclosed)) {
            cell.store(word, Ordering::Relaxed);
        }
        let next = number.wrapping_add(1);
        pair[POSTED].store(next, Ordering::Relaxed);
        slot[STAMP].store(next, Ordering::Release);
    }

    /// The next letter for `to`, and its number: its words are there, and what they are about.
    pub(crate) fn next_letter(&self, from: usize, to: usize) -> Option<(u64, Letter)> {
        let pair = self.pair(from, to);
        let number = pair[TAKEN].load(Ordering::Relaxed);
        let slot = slot(pair, number);
        let is_there = slot[STAMP].load(Ordering::Acquire) == number.wrapping_add(1);
        is_there.then(|| (number, std::array::from_fn(|index| slot[STAMP + 1 + index].load(Ordering::Relaxed))))
    }

    /// Fills `into` with what is enclosed in a letter that has come; zeros beyond its end.
    pub(crate) fn read_enclosed(&self, from: usize, to: usize, number: u64, into: &mut [u8]) {
        let slot = slot(self.pair(from, to), number);
        fill(into, 0, |index| slot.get(ENCLOSURE + index).map_or(0, |word| word.load(Ordering::Relaxed)));
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
    let start = FIRST + (number % SLOTS) as usize * LINE;
    &pair[start..start + LINE]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::sheets::words;
    use super::*;

    #[test]
    fn letters_of_a_pair_stay_in_order() {
        let board = Board::new(3);
        assert_eq!(board.next_letter(0, 2), None);
        for round in 0..3 {
            for letter in 0..SLOTS {
                assert!(board.has_room(0, 2, SLOTS));
                board.send(0, 2, [round, letter, 7], words(&[letter as u8; 20]));
            }
            assert!(!board.has_room(0, 2, SLOTS));
            assert_eq!((board.under_way(0, 2), board.under_way(2, 0)), (SLOTS, 0));
            for letter in 0..SLOTS {
                let (number, found) = board.next_letter(0, 2).unwrap();
                assert_eq!((number, found), (round * SLOTS + letter, [round, letter, 7]));
                let mut enclosed = [9; 20];
                board.read_enclosed(0, 2, number, &mut enclosed);
                assert_eq!(enclosed, [letter as u8; 20]);
                board.take(0, 2, number);
            }
            assert_eq!(board.under_way(0, 2), 0);
        }
    }
}
