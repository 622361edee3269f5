//! The failure report of a launch, which `handshake.cuh` encodes.

use std::fmt;

use disco_core::Rank;

/// The first handshake of a rank that failed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why the wait ended.
    pub cause: Cause,
    /// The position of the handshake in the launch.
    pub phase: Phase,
    /// The peer that did not arrive.
    pub peer: Rank,
    /// The block that waited.
    pub block: u32,
}

/// Why a wait for a peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause(u8);

/// The position of a handshake in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase(u8);

impl Cause {
    /// The peer did not arrive within [`Params::timeout_ns`](super::Params::timeout_ns).
    pub const DEADLINE: Self = Self(1);
    /// The host set the abort flag.
    pub const ABORTED: Self = Self(2);
}

impl Phase {
    /// After the copy of the inputs to the shared buffers.
    pub const LEADING: Self = Self(1);
    /// After the sums of slices or halves are in the shared buffers.
    pub const MID: Self = Self(2);
    /// Before the shared buffers may be overwritten.
    pub const TRAILING: Self = Self(3);
    /// The only handshake of the barrier kernel.
    pub const ALONE: Self = Self(4);
}

impl Failure {
    /// Decodes the word at [`Params::report`](super::Params::report). `None` if no launch has failed.
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
            Cause::DEADLINE => write!(f, "{peer} has not arrived at the {phase} of block {block} in time"),
            Cause::ABORTED => write!(f, "aborted before {peer} reached the {phase} of block {block}"),
            Cause(other) => write!(f, "failure {other} before {peer} reached the {phase} of block {block}"),
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
        assert_eq!(text(0x0102_0703), "rank 7 has not arrived at the mid handshake of block 3 in time");
        assert_eq!(text(0x0204_0000), "aborted before rank 0 reached the barrier of block 0");
        assert_eq!(text(0xff09_0100), "failure 255 before rank 1 reached the handshake 9 of block 0");
        assert_eq!(Failure::of(0), None);
    }
}
