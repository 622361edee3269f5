//! What kernels are launched with, as `handshake.cuh` has it.

use std::mem::offset_of;

/// Most ranks.
pub const MAX_WORLD: usize = 8;
/// Most blocks: so many have flags.
pub const MAX_BLOCKS: usize = 64;
/// Most threads of a block.
pub const MAX_THREADS: usize = 512;
/// What a thread moves at once, in bytes: memory starts at multiples of it, and has multiples of it.
pub const VECTOR: usize = 16;
/// Most vectors in one launch: numbers of vectors are 32 bits, and grow by less than this at a time.
pub(super) const MAX_VECTORS: usize = 1 << 30;

/// Of a rank's state: a flag for each block and peer on a line of its own, the numbers of its own handshakes, its
/// status.
pub const STATE_BYTES: usize =
    CACHE_LINE_BYTES * MAX_BLOCKS * MAX_WORLD + size_of::<u32>() * MAX_BLOCKS * MAX_WORLD + CACHE_LINE_BYTES;

/// No two flags are on one.
const CACHE_LINE_BYTES: usize = 128;

/// The one parameter of every kernel. Addresses are those that the launching rank's device knows.
#[allow(clippy::exhaustive_structs, reason = "kernels know its fields")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// The shared buffer of each rank: room for the input, twice for
    /// [`HybridCubeMesh`](super::Algorithm::HybridCubeMesh).
    pub data: [u64; MAX_WORLD],
    /// The state of each rank: [`STATE_BYTES`], at a multiple of 128.
    pub state: [u64; MAX_WORLD],
    /// What this rank has.
    pub input: u64,
    /// Where the sum goes; may be the input.
    pub output: u64,
    /// A word that the host sets to another number than 0 to have the launch give up.
    pub abort: u64,
    /// A word, 0 so far, where the host is told why a launch has failed: [`Failure::of`](super::Failure::of).
    pub report: u64,
    /// How long each handshake waits for a peer, in nanoseconds.
    pub timeout_ns: u64,
    /// Vectors of 16 bytes in input and output.
    pub count: u32,
    /// Who launches.
    pub rank: u32,
    /// How many ranks there are.
    pub world: u32,
    /// Of a hybrid cube mesh: a bit for this rank and each of its three neighbours but the relay. The four have the
    /// same.
    pub near: u32,
    /// Of a hybrid cube mesh: the relay, whose relay is this rank.
    pub relay: u32,
    /// 0.
    pub unused: u32,
}

/// Names and places of [`Params`]' fields: tests compare them with those in the source.
pub const FIELDS: [(&str, usize); 13] = [
    ("data", offset_of!(Params, data)),
    ("state", offset_of!(Params, state)),
    ("input", offset_of!(Params, input)),
    ("output", offset_of!(Params, output)),
    ("abort", offset_of!(Params, abort)),
    ("report", offset_of!(Params, report)),
    ("timeout_ns", offset_of!(Params, timeout_ns)),
    ("count", offset_of!(Params, count)),
    ("rank", offset_of!(Params, rank)),
    ("world", offset_of!(Params, world)),
    ("near", offset_of!(Params, near)),
    ("relay", offset_of!(Params, relay)),
    ("unused", offset_of!(Params, unused)),
];

const _: () = assert!(size_of::<Params>() == 192 && STATE_BYTES == 67_712, "as in handshake.cuh");
