//! The pieces of a rank's staging area.

/// A piece of a staging area, by its use and its number over the life of a communicator.
///
/// Each use has two pieces, which are filled alternately (double buffering): a piece is filled again only after its
/// previous content was read. Collectives and messages track these reads differently. A collective leaves its last
/// synchronisation to the next collective, so messages in between must not use the pieces of collectives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    /// A rank's input of a collective. Piece `n` can be filled once all ranks have reached the synchronisation after
    /// piece `n - 1`.
    Input(u64),
    /// A rank's share of the result of a reduction, with the same rule.
    Share(u64),
    /// The tensor of a message, or a part of the tensor. Piece `n` can be filled once message `n - 2` between the two
    /// ranks is acknowledged. Each receiver has a block of its own in the piece.
    Message(u64),
}

/// Number of pieces of each rank.
pub(super) const PIECES_PER_RANK: usize = 6;

impl Piece {
    /// Index of the piece in the staging area of a rank.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Input(number) => (number % 2) as usize,
            Self::Share(number) => 2 + (number % 2) as usize,
            Self::Message(number) => 4 + (number % 2) as usize,
        }
    }
}
