//! The grid of a launch. All ranks must launch the same grid; the functions return the same grid for the same
//! [`Occupancy`], on which the ranks have agreed.

use super::choice::Algorithm;
use super::params::{MAX_BLOCKS, MAX_THREADS};

/// The number of blocks, and of threads in each block.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of blocks.
    pub blocks: u32,
    /// Number of threads of each block.
    pub threads: u32,
}

/// How many blocks the ranks may launch.
#[allow(clippy::exhaustive_structs, reason = "its caller asks the driver")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Blocks of [`MAX_THREADS`] threads that fit on the smallest device at once: blocks per multiprocessor ×
    /// multiprocessors.
    pub resident_blocks: u32,
    /// The largest number of ranks on one device.
    pub ranks_per_device: u32,
    /// Upper limit for the blocks of a launch.
    pub max_blocks: u32,
}

/// The default of [`Occupancy::max_blocks`]: as many as a rank's state has flags for. Spinning blocks occupy
/// multiprocessors that other work could use.
pub const DEFAULT_MAX_BLOCKS: u32 = MAX_BLOCKS as u32;

/// More blocks than these only if each thread has [`VECTORS_PER_THREAD`]: below, more blocks are no faster. Two ranks of one
/// H100 sum 1 MiB in 6.9 µs with 32, 48 and 64 blocks, 4 MiB in 12.4, 11.5 and 10.8 µs.
const FEW_BLOCKS: u32 = 32;

/// Vectors of a thread from which on a launch has more than [`FEW_BLOCKS`]. A thread of two ranks loads as many at once.
const VECTORS_PER_THREAD: u32 = 4;

/// Threads of a warp.
const WARP: u32 = 32;

/// The grid for a sum of `vectors` vectors of 16 bytes. `None` if the ranks of one device can't all be resident on it
/// at once.
pub fn grid(algorithm: Algorithm, vectors: usize, world: usize, occupancy: Occupancy) -> Option<Grid> {
    let threads_needed = match algorithm {
        Algorithm::OneShot | Algorithm::HybridCubeMesh => vectors,
        Algorithm::TwoShot => vectors_per_slice(vectors, world),
    };
    let threads_needed = u32::try_from(threads_needed).unwrap_or(u32::MAX);
    let max_blocks = blocks_per_rank(occupancy)?.min(occupancy.max_blocks).min(MAX_BLOCKS as u32).max(1);
    let threads = threads_needed.div_ceil(WARP).clamp(1, MAX_THREADS as u32 / WARP) * WARP;
    let blocks = threads_needed.div_ceil(threads);
    Some(Grid { blocks: blocks.min(FEW_BLOCKS.max(blocks / VECTORS_PER_THREAD)).clamp(1, max_blocks), threads })
}

/// The grid of the barrier: one block of one warp, in which each thread synchronises with one rank. `None` as in
/// [`grid`](grid()).
pub fn barrier(occupancy: Occupancy) -> Option<Grid> {
    blocks_per_rank(occupancy).map(|_| Grid { blocks: 1, threads: WARP })
}

/// Blocks of each rank that fit on a device at once. `None` if not even one does.
fn blocks_per_rank(occupancy: Occupancy) -> Option<u32> {
    occupancy.resident_blocks.checked_div(occupancy.ranks_per_device).filter(|&blocks| blocks > 0)
}

/// Vectors of each rank's slice in two-shot: a multiple of a line of 128 bytes, as `vectors_per_slice` of
/// `all_reduce.cu` computes.
fn vectors_per_slice(vectors: usize, world: usize) -> usize {
    const VECTORS_PER_LINE: usize = 8;
    vectors.div_ceil(world.max(1) * VECTORS_PER_LINE) * VECTORS_PER_LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    const OCCUPANCY: Occupancy =
        Occupancy { resident_blocks: 264, ranks_per_device: 1, max_blocks: DEFAULT_MAX_BLOCKS };

    fn of(algorithm: Algorithm, vectors: usize, occupancy: Occupancy) -> Option<(u32, u32)> {
        grid(algorithm, vectors, 8, occupancy).map(|grid| (grid.blocks, grid.threads))
    }

    #[test]
    fn the_grid_grows_with_the_vectors_up_to_max_blocks() {
        let blocks = |vectors| of(Algorithm::OneShot, vectors, OCCUPANCY).unwrap();
        assert_eq!([1, 32, 33, 512, 513].map(blocks), [(1, 32), (1, 32), (1, 64), (1, 512), (2, 512)]);
        assert_eq!([16384, 16385, 131 * 512].map(blocks), [(32, 512); 3]);
        assert_eq!([131 * 512 + 1, 64 * 4 * 512, usize::MAX].map(blocks), [(33, 512), (64, 512), (64, 512)]);
        assert_eq!(of(Algorithm::TwoShot, 8 * 512, OCCUPANCY), Some((1, 512)));
        assert_eq!(of(Algorithm::TwoShot, 8 * 512 + 1, OCCUPANCY), Some((2, 512)));
    }

    #[test]
    fn ranks_on_one_device_divide_its_blocks() {
        let shared = |ranks_per_device| of(Algorithm::OneShot, 16384, Occupancy { ranks_per_device, ..OCCUPANCY });
        assert_eq!([8, 9, 264].map(shared), [Some((32, 512)), Some((29, 512)), Some((1, 512))]);
        assert_eq!([265, 0].map(shared), [None; 2]);
        assert_eq!(barrier(Occupancy { ranks_per_device: 265, ..OCCUPANCY }), None);
        assert_eq!(barrier(OCCUPANCY), Some(Grid { blocks: 1, threads: 32 }));
    }

    #[test]
    fn the_number_of_blocks_is_between_one_and_the_number_of_flags() {
        let max_blocks = |max_blocks| of(Algorithm::OneShot, 1 << 20, Occupancy { max_blocks, ..OCCUPANCY });
        assert_eq!([1000, 0].map(max_blocks), [Some((64, 512)), Some((1, 512))]);
    }
}
