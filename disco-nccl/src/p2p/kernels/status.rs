//! Why a launch has failed, as `handshake.cuh` reports it.

use std::fmt;

use disco_core::Rank;

/// The first handshake of a rank that did not come about.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why it was given up.
    pub cause: Cause,
    /// Which one of its launch.
    pub phase: Phase,
    /// Who was waited for.
    pub peer: Rank,
    /// By which block.
    pub block: u32,
}

/// Why a wait was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause(u8);

/// A handshake of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase(u8);

impl Cause {
    /// The peer did not come in time.
    pub const DEADLINE: Self = Self(1);
    /// The host said so.
    pub const ABORTED: Self = Self(2);
}

impl Phase {
    /// After inputs are in shared buffers.
    pub const LEADING: Self = Self(1);
    /// After sums of slices, or of four ranks, are.
    pub const MID: Self = Self(2);
    /// Before shared buffers may be written again.
    pub const TRAILING: Self = Self(3);
    /// The barrier that is a kernel of its own.
    pub const ALONE: Self = Self(4);
}

impl Failure {
    /// What the word at [`Params::report`](super::Params::report) says; None while nothing has failed.
    pub fn of(word: u32) -> Option<Self> {
        let [block, peer, phase, cause] = word.to_le_bytes();
        let failure =
            Self { cause: Cause(cause), phase: Phase(phase), peer: Rank::new(peer.into()), block: block.into() };
        (word != 0).then_some(failure)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, phase, peer, block } = self;
        match *cause {
            Cause::DEADLINE => write!(f, "{peer} has not come in time to the {phase} of block {block}"),
            Cause::ABORTED => write!(f, "aborted while {peer} had not come to the {phase} of block {block}"),
            Cause(other) => write!(f, "cause {other}, while {peer} had not come to the {phase} of block {block}"),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::LEADING => f.write_str("leading handshake"),
            Self::MID => f.write_str("mid handshake"),
            Self::TRAILING => f.write_str("trailing handshake"),
            Self::ALONE => f.write_str("barrier"),
            Self(other) => write!(f, "handshake {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_peer_handshake_and_block() {
        let text = |word| Failure::of(word).unwrap().to_string();
        assert_eq!(text(0x0102_0703), "rank 7 has not come in time to the mid handshake of block 3");
        assert_eq!(text(0x0204_0000), "aborted while rank 0 had not come to the barrier of block 0");
        assert_eq!(text(0xff09_0100), "cause 255, while rank 1 had not come to the handshake 9 of block 0");
        assert_eq!(Failure::of(0), None);
    }
}
