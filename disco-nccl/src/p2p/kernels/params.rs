//! The parameters and limits of the kernels. They must agree with `handshake.cuh`; `tests/kernels/layout.rs` compares them.

use std::mem::offset_of;

/// The largest number of ranks.
pub const MAX_WORLD: usize = 8;
/// The largest number of blocks of a launch: a rank's state has flags for this many.
pub const MAX_BLOCKS: usize = 64;
/// The largest number of threads of a block.
pub const MAX_THREADS: usize = 512;
/// Bytes that a thread loads or stores at once. Addresses and sizes of tensors are multiples of this.
pub const VECTOR: usize = 16;
/// The largest number of vectors of a launch. Kernels index vectors with 32 bits; their loops add less than this to an
/// index, so it does not overflow.
pub(super) const MAX_VECTORS: usize = 1 << 30;

/// Size of a rank's state: a flag on its own cache line for each block and peer, the number of handshakes for each
/// block and peer, and the status.
pub const STATE_BYTES: usize =
    CACHE_LINE_BYTES * MAX_BLOCKS * MAX_WORLD + size_of::<u32>() * MAX_BLOCKS * MAX_WORLD + CACHE_LINE_BYTES;

/// Distance between flags, so that no two share a cache line.
const CACHE_LINE_BYTES: usize = 128;

/// The parameter of every kernel. Addresses are valid on the launching rank's device.
#[allow(clippy::exhaustive_structs, reason = "kernels know its fields")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// The shared buffer of each rank: as large as the input; twice as large for
    /// [`HybridCubeMesh`](super::Algorithm::HybridCubeMesh).
    pub data: [u64; MAX_WORLD],
    /// The state of each rank: [`STATE_BYTES`] bytes, aligned to 128 bytes.
    pub state: [u64; MAX_WORLD],
    /// The input of this rank.
    pub input: u64,
    /// The output of this rank; may be the input.
    pub output: u64,
    /// The abort flag: the launch ends early if the host sets this word to a value other than 0.
    pub abort: u64,
    /// The failure report: a word that is 0 until the first launch fails; [`Failure::of`](super::Failure::of) decodes
    /// it.
    pub report: u64,
    /// The limit of each wait for a peer, in nanoseconds.
    pub timeout_ns: u64,
    /// Number of vectors of [`VECTOR`] bytes in input and output.
    pub count: u32,
    /// The rank that launches.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// Hybrid cube mesh only: the mask of this rank's half, which is the rank and its neighbours except the relay.
    /// Equal on the four ranks of a half.
    pub near: u32,
    /// Hybrid cube mesh only: the relay, which is this rank's partner in the other half.
    pub relay: u32,
    /// Padding, 0.
    pub unused: u32,
}

/// Names and offsets of the fields of [`Params`], for the comparison with `handshake.cuh`.
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
