//! Messages from one rank to another: a bounded queue of slots for each pair of ranks.

use super::posts::read_words;
use super::{Board, LINE_WORDS, pair};
use crate::sync::{AtomicU64, Ordering};

/// The most messages in flight between a pair of ranks.
pub(crate) const MAX_IN_FLIGHT: u64 = if cfg!(loom) { 1 } else { 4 };

/// Offsets in the words of a pair: the line that mostly the sender uses, the line that the receiver writes, and the
/// slots, a line each.
const POSTED: usize = 0;
const SEEN: usize = 1;
const TAKEN: usize = LINE_WORDS;
const FIRST: usize = 2 * LINE_WORDS;
pub(super) const PAIR_WORDS: usize = FIRST + MAX_IN_FLIGHT as usize * LINE_WORDS;

/// Offsets in a slot: the number of its message + 1, which is stored last; the header; the inline data.
const SEQUENCE: usize = 0;
const HEADER_WORDS: usize = if cfg!(loom) { 1 } else { 3 };
const PAYLOAD: usize = 1 + HEADER_WORDS;

/// The header of a message. The board does not interpret it.
pub(crate) type MessageHeader = [u64; HEADER_WORDS];

/// The most inline data of a message, in bytes.
#[cfg(not(loom))]
pub(crate) const MAX_INLINE_BYTES: usize = 8 * (LINE_WORDS - PAYLOAD);

impl Board {
    /// Number of messages from `from` to `to` that `to` has not acknowledged. The tensor of an acknowledged message may
    /// be changed.
    pub(crate) fn in_flight(&self, from: usize, to: usize) -> u64 {
        let pair = self.pair(from, to);
        pair[POSTED].load(Ordering::Relaxed).wrapping_sub(pair[TAKEN].load(Ordering::Acquire))
    }

    /// Whether fewer than `limit` messages are in flight. For `from` only. Loads the receiver's line only if the cached
    /// acknowledgements don't suffice.
    pub(crate) fn has_room(&self, from: usize, to: usize, limit: u64) -> bool {
        let pair = self.pair(from, to);
        let (posted, seen) = (pair[POSTED].load(Ordering::Relaxed), &pair[SEEN]);
        let is_free = |taken| posted.wrapping_sub(taken) < limit;
        is_free(seen.load(Ordering::Relaxed)) || {
            let taken = pair[TAKEN].load(Ordering::Acquire);
            seen.store(taken, Ordering::Relaxed);
            is_free(taken)
        }
    }

    /// The number of the next message from `from` to `to`. For `from` only.
    pub(crate) fn next_number(&self, from: usize, to: usize) -> u64 {
        self.pair(from, to)[POSTED].load(Ordering::Relaxed)
    }

    /// Sends a message with at most [`MAX_INLINE_BYTES`] of inline data. Fewer than [`MAX_IN_FLIGHT`] messages are in
    /// flight.
    pub(crate) fn send(&self, from: usize, to: usize, header: MessageHeader, payload: impl Iterator<Item = u64>) {
        let pair = self.pair(from, to);
        let number = pair[POSTED].load(Ordering::Relaxed);
        let slot = slot(pair, number);
        for (cell, word) in slot[SEQUENCE + 1..].iter().zip(header.into_iter().chain(payload)) {
            cell.store(word, Ordering::Relaxed);
        }
        let next = number.wrapping_add(1);
        pair[POSTED].store(next, Ordering::Relaxed);
        slot[SEQUENCE].store(next, Ordering::Release);
    }

    /// The number and header of the next message for `to`, if it has arrived. All writes of the sender before it are
    /// visible.
    pub(crate) fn next_message(&self, from: usize, to: usize) -> Option<(u64, MessageHeader)> {
        let pair = self.pair(from, to);
        let number = pair[TAKEN].load(Ordering::Relaxed);
        let slot = slot(pair, number);
        let is_there = slot[SEQUENCE].load(Ordering::Acquire) == number.wrapping_add(1);
        is_there.then(|| (number, std::array::from_fn(|index| slot[SEQUENCE + 1 + index].load(Ordering::Relaxed))))
    }

    /// Fills `into` with the inline data of a message that has arrived, and zeros beyond its end.
    pub(crate) fn read_inline(&self, from: usize, to: usize, number: u64, into: &mut [u8]) {
        let slot = slot(self.pair(from, to), number);
        read_words(into, 0, |index| slot.get(PAYLOAD + index).map_or(0, |word| word.load(Ordering::Relaxed)));
    }

    /// Acknowledges message `number`, whose slot becomes free.
    pub(crate) fn release_slot(&self, from: usize, to: usize, number: u64) {
        self.pair(from, to)[TAKEN].store(number.wrapping_add(1), Ordering::Release);
    }

    fn pair(&self, from: usize, to: usize) -> &[AtomicU64] {
        self.span(pair(self.size, from, to), PAIR_WORDS)
    }
}

fn slot(pair: &[AtomicU64], number: u64) -> &[AtomicU64] {
    let start = FIRST + (number % MAX_IN_FLIGHT) as usize * LINE_WORDS;
    &pair[start..start + LINE_WORDS]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::posts::to_words;
    use super::*;

    #[test]
    fn messages_of_a_pair_arrive_in_order() {
        let board = Board::new(3);
        assert_eq!(board.next_message(0, 2), None);
        for round in 0..3 {
            for header in 0..MAX_IN_FLIGHT {
                assert!(board.has_room(0, 2, MAX_IN_FLIGHT));
                board.send(0, 2, [round, header, 7], to_words(&[header as u8; 20]));
            }
            assert!(!board.has_room(0, 2, MAX_IN_FLIGHT));
            assert_eq!((board.in_flight(0, 2), board.in_flight(2, 0)), (MAX_IN_FLIGHT, 0));
            for header in 0..MAX_IN_FLIGHT {
                let (number, found) = board.next_message(0, 2).unwrap();
                assert_eq!((number, found), (round * MAX_IN_FLIGHT + header, [round, header, 7]));
                let mut payload = [9; 20];
                board.read_inline(0, 2, number, &mut payload);
                assert_eq!(payload, [header as u8; 20]);
                board.release_slot(0, 2, number);
            }
            assert_eq!(board.in_flight(0, 2), 0);
        }
    }
}
