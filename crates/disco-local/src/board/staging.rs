//! Boards in shared segments, with a staging area for each rank after the words. Ranks copy private data there, which
//! other processes can't access.

use std::ops::Range;
use std::sync::Arc;

use disco_core::shared_memory::Segment;
use disco_core::{Error, Result};

use super::memory::BoardMemory;
use super::pieces::{PIECES_PER_RANK, Piece};
use super::tensors::{MAX_TENSOR_BYTES, limit};
use super::{Board, Presence, SIZE, TENSOR_BYTES, count};
use crate::sync::Ordering;

/// Smallest size of a piece. It fits in the caches of both the writing and the reading core.
const MIN_PIECE_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;
/// Alignment of the blocks of a piece.
const BLOCK_ALIGN_BYTES: usize = 64;

impl Board {
    /// Makes a board for `size` ranks in processes of this machine, with all its pages allocated.
    ///
    /// # Errors
    /// The system has not enough shared memory.
    pub(crate) fn create(size: usize, presence: Presence) -> Result<Self> {
        let segment = Arc::new(Segment::create(bytes(size))?);
        let memory = BoardMemory::shared(segment, count(size)).ok_or_else(|| too_small(size))?;
        let tensor_bytes = limit(size);
        let board = Self { memory, size, tensor_bytes };
        board.word(TENSOR_BYTES).store(tensor_bytes as u64, Ordering::Relaxed);
        (0..size).for_each(|rank| board.set_presence(rank, presence));
        board.word(SIZE).store(size as u64, Ordering::Release);
        Ok(board)
    }

    /// Opens a board that another process has made.
    ///
    /// # Errors
    /// The segment is not a board.
    pub(crate) fn open(segment: Segment) -> Result<Self> {
        let size = segment.words().get(SIZE).map_or(0, |size| size.load(Ordering::Acquire)) as usize;
        // No session has so many ranks: a larger size means that the segment is not a board. The limit also keeps the
        // computation of sizes from overflowing.
        let fits = (1..=1 << 20).contains(&size) && bytes(size) <= segment.byte_len();
        let memory = fits.then(|| BoardMemory::shared(Arc::new(segment), count(size))).flatten();
        let memory = memory.ok_or_else(|| too_small(size))?;
        // Read once: a later change of the word by a peer has no effect on this rank.
        let tensor_bytes = memory.all()[TENSOR_BYTES].load(Ordering::Relaxed).min(MAX_TENSOR_BYTES as u64) as usize;
        Ok(Self { memory, size, tensor_bytes })
    }

    /// The segment of the board, if it is in one.
    pub(crate) fn segment(&self) -> Option<&Arc<Segment>> {
        self.memory.segment()
    }

    /// Size of a piece in bytes.
    pub(crate) fn piece_bytes(&self) -> usize {
        piece(self.size)
    }

    /// Size of the block of one rank in a piece, in bytes.
    pub(crate) fn block_bytes(&self) -> usize {
        piece(self.size) / self.size / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES
    }

    /// The range of a piece of `rank` in the segment, in bytes.
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
    Error::protocol(format!("the shared segment is not a board of {size} ranks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_the_words_and_do_not_overlap() {
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
    fn open_refuses_a_segment_that_is_not_a_board() {
        let empty = Board::open(Segment::create(8192).unwrap());
        assert_eq!(empty.err().unwrap().to_string(), "the shared segment is not a board of 0 ranks");
        let liar = Segment::create(8192).unwrap();
        liar.words()[SIZE].store(u64::MAX, Ordering::Relaxed);
        assert!(Board::open(liar).is_err());
    }
}
