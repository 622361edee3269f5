//! What the kernels are launched with, as they know it: see `disco-nccl/src/p2p/kernels/handshake.cuh`.

/// Most ranks.
pub(crate) const MAX_WORLD: usize = 8;
/// Most blocks: so many have flags.
pub(crate) const MAX_BLOCKS: usize = 64;
/// Most threads of a block.
pub(crate) const MAX_THREADS: usize = 512;
/// What a thread moves at once, in bytes.
pub(crate) const VECTOR: usize = 16;

/// The one parameter of every kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "the kernels'")]
pub struct Params {
    /// Each rank's shared buffer.
    pub data: [u64; MAX_WORLD],
    /// Each rank's state.
    pub state: [u64; MAX_WORLD],
    /// What this rank has.
    pub input: u64,
    /// Where the sum goes.
    pub output: u64,
    /// A word: not 0, give up.
    pub abort: u64,
    /// A word, which says why a launch has failed.
    pub report: u64,
    /// How long to wait for a peer, in nanoseconds.
    pub timeout_ns: u64,
    /// Of input and output, in vectors.
    pub count: u32,
    /// Who launches.
    pub rank: u32,
    /// How many ranks there are.
    pub world: u32,
    /// Of a hybrid cube mesh: a bit for this rank and each neighbour but the relay.
    pub near: u32,
    /// Of a hybrid cube mesh: the relay.
    pub relay: u32,
    /// 0.
    pub unused: u32,
}

const _: () = assert!(size_of::<Params>() == 192, "as in handshake.cuh");
