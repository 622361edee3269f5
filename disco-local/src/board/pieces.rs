//! The pieces of a rank's staging area.

/// A piece, by its use and its number over the life of a communicator.
///
/// Each use has two pieces of its own, filled in turn (double buffering): a piece is filled again only after its reader is
/// known to be done with the fill before the last. Collectives and letters learn that in different ways. A collective leaves
/// its last synchronisation to the next collective, so letters in between must not use the pieces of collectives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    /// A rank's input of a collective: piece `n` is free once all ranks have come to the synchronisation behind piece `n - 1`.
    Input(u64),
    /// A rank's share of a reduction's result: as for inputs.
    Share(u64),
    /// A tensor, or a part of it, that a letter is about: free once the letter of number `n - 2` between the two ranks was
    /// taken. Each receiver has a block of its own in it.
    Message(u64),
}

/// Pieces of a rank.
pub(super) const PIECES_PER_RANK: usize = 6;

impl Piece {
    /// Its place in the staging area of a rank, in pieces.
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Input(number) => (number % 2) as usize,
            Self::Share(number) => 2 + (number % 2) as usize,
            Self::Message(number) => 4 + (number % 2) as usize,
        }
    }
}
