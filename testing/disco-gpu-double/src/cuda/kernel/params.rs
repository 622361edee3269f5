//! The parameters and limits of the kernels, as in `disco-nccl/src/p2p/kernels/handshake.cuh`.

/// The largest number of ranks.
pub(crate) const MAX_WORLD: usize = 8;
/// The largest number of blocks of a launch.
pub(crate) const MAX_BLOCKS: usize = 64;
/// The largest number of threads of a block.
pub(crate) const MAX_THREADS: usize = 512;
/// Bytes that a thread loads or stores at once.
pub(crate) const VECTOR: usize = 16;

/// The parameter of every kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "the kernels'")]
pub struct Params {
    /// The shared buffer of each rank.
    pub data: [u64; MAX_WORLD],
    /// The state of each rank.
    pub state: [u64; MAX_WORLD],
    /// The input of this rank.
    pub input: u64,
    /// The output of this rank.
    pub output: u64,
    /// The abort flag: a word that the host sets to a value other than 0.
    pub abort: u64,
    /// The failure report: a word that the first failing launch writes.
    pub report: u64,
    /// The limit of each wait for a peer, in nanoseconds.
    pub timeout_ns: u64,
    /// Number of vectors in input and output.
    pub count: u32,
    /// The rank that launches.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// Hybrid cube mesh only: the mask of the ranks of this rank's half.
    pub near: u32,
    /// Hybrid cube mesh only: the rank's partner in the other half.
    pub relay: u32,
    /// Padding, 0.
    pub unused: u32,
}

const _: () = assert!(size_of::<Params>() == 192, "as in handshake.cuh");
