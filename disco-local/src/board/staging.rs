//! Boards in segments, with room beside the words where ranks put what others can't reach.

use std::ops::Range;
use std::sync::Arc;

use disco_core::shared_memory::Segment;
use disco_core::{Error, Result};

use super::memory::BoardMemory;
use super::pieces::{PIECES_PER_RANK, Piece};
use super::{Board, Presence, SIZE, count};
use crate::sync::Ordering;

/// What is staged at a time: it stays in the caches of the core that writes and of the one that reads.
const MIN_PIECE_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;
/// Blocks of pieces begin at these.
const BLOCK_ALIGN_BYTES: usize = 64;

impl Board {
    /// A board for `size` ranks in processes of this machine, with all its pages.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn create(size: usize, presence: Presence) -> Result<Self> {
        let segment = Arc::new(Segment::create(bytes(size))?);
        let memory = BoardMemory::shared(segment, count(size)).ok_or_else(|| too_small(size))?;
        let board = Self { memory, size };
        (0..size).for_each(|rank| board.set_presence(rank, presence));
        board.word(SIZE).store(size as u64, Ordering::Release);
        Ok(board)
    }

    /// The board that another process made.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn open(segment: Segment) -> Result<Self> {
        let size = segment.words().get(SIZE).map_or(0, |size| size.load(Ordering::Acquire)) as usize;
        // A rank is 32 bits wide; so many ranks would not have been given a board.
        let fits = (1..=1 << 20).contains(&size) && bytes(size) <= segment.byte_len();
        let memory = fits.then(|| BoardMemory::shared(Arc::new(segment), count(size))).flatten();
        memory.map(|memory| Self { memory, size }).ok_or_else(|| too_small(size))
    }

    /// What it is in, if processes share it.
    pub(crate) fn segment(&self) -> Option<&Arc<Segment>> {
        self.memory.segment()
    }

    /// Bytes of a piece: a multiple of the block that each of the ranks may need in it.
    pub(crate) fn piece_bytes(&self) -> usize {
        piece(self.size)
    }

    /// The part of a piece that one of the ranks may need.
    pub(crate) fn block_bytes(&self) -> usize {
        piece(self.size) / self.size / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES
    }

    /// The bytes of a piece of `rank`, in the segment.
    pub(crate) fn piece(&self, rank: usize, piece: Piece) -> Range<usize> {
        let bytes = self.piece_bytes();
        let start = first(self.size) + (rank * PIECES_PER_RANK + piece.index()) * bytes;
        start..start + bytes
    }
}

fn piece(size: usize) -> usize {
    MIN_PIECE_BYTES.max(size * BLOCK_ALIGN_BYTES).next_multiple_of(PAGE_BYTES)
}

/// The first byte of the staging areas.
fn first(size: usize) -> usize {
    (8 * count(size)).next_multiple_of(PAGE_BYTES)
}

fn bytes(size: usize) -> usize {
    first(size) + size * PIECES_PER_RANK * piece(size)
}

fn too_small(size: usize) -> Error {
    Error::protocol(format!("a shared segment that is no board of {size} ranks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_behind_the_words_and_apart() {
        for size in [1, 2, 7, 5000] {
            assert!(first(size) >= 8 * count(size) && piece(size) / size >= BLOCK_ALIGN_BYTES);
            let board = match size {
                5000 => continue,
                size => Board::create(size, Presence::Connected).unwrap(),
            };
            let pieces = [
                Piece::Input(0),
                Piece::Input(1),
                Piece::Share(2),
                Piece::Share(3),
                Piece::Message(4),
                Piece::Message(5),
            ];
            let board = &board;
            let ends: Vec<_> = (0..size).flat_map(|rank| pieces.map(|piece| board.piece(rank, piece))).collect();
            assert!(ends.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!(ends.last().unwrap().end, board.segment().unwrap().byte_len());
        }
    }

    #[test]
    fn what_is_no_board_is_refused() {
        let empty = Board::open(Segment::create(8192).unwrap());
        assert_eq!(empty.err().unwrap().to_string(), "a shared segment that is no board of 0 ranks");
        let liar = Segment::create(8192).unwrap();
        liar.words()[SIZE].store(u64::MAX, Ordering::Relaxed);
        assert!(Board::open(liar).is_err());
    }
}
