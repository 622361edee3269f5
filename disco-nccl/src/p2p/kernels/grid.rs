//! On how many blocks and threads a kernel runs. All ranks must come to the same: so they do if they have agreed on
//! [`Occupancy`].

use super::choice::Algorithm;
use super::params::{MAX_BLOCKS, MAX_THREADS};

/// Blocks, and threads in each.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// How many blocks.
    pub blocks: u32,
    /// How many threads each has.
    pub threads: u32,
}

/// What ranks have for blocks.
#[allow(clippy::exhaustive_structs, reason = "its caller asks the driver")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// How many blocks of [`MAX_THREADS`] of the kernel can be on the smallest device at once: occupancy ×
    /// multiprocessors.
    pub resident_blocks: u32,
    /// How many ranks share the device that most ranks share.
    pub ranks_per_device: u32,
    /// No more blocks than these.
    pub max_blocks: u32,
}

/// Blocks are few, because they spin on multiprocessors that others could use, and enough to keep links busy. A guess,
/// unmeasured here: 32 blocks of 512 threads have 2 MiB on the way where 8 ranks are read.
pub const DEFAULT_MAX_BLOCKS: u32 = 32;

/// Threads are in warps of so many.
const WARP: u32 = 32;

/// The grid for a sum of so many vectors of 16 bytes. None where the ranks of a device can't all be on it at once.
pub fn grid(algorithm: Algorithm, vectors: usize, world: usize, occupancy: Occupancy) -> Option<Grid> {
    let threads_needed = match algorithm {
        Algorithm::OneShot | Algorithm::HybridCubeMesh => vectors,
        Algorithm::TwoShot => vectors_per_slice(vectors, world),
    };
    let threads_needed = u32::try_from(threads_needed).unwrap_or(u32::MAX);
    let max_blocks = blocks_per_rank(occupancy)?.min(occupancy.max_blocks).min(MAX_BLOCKS as u32).max(1);
    let threads = threads_needed.div_ceil(WARP).clamp(1, MAX_THREADS as u32 / WARP) * WARP;
    Some(Grid { blocks: threads_needed.div_ceil(threads).clamp(1, max_blocks), threads })
}

/// The grid of the barrier: one block of one warp, whose threads meet a rank each. None as in [`grid`].
pub fn barrier(occupancy: Occupancy) -> Option<Grid> {
    blocks_per_rank(occupancy).map(|_| Grid { blocks: 1, threads: WARP })
}

/// How many blocks of each rank fit on a device at once.
fn blocks_per_rank(occupancy: Occupancy) -> Option<u32> {
    occupancy.resident_blocks.checked_div(occupancy.ranks_per_device).filter(|&blocks| blocks > 0)
}

/// How many vectors each rank sums in two-shot: whole lines of 128 bytes. As in `all_reduce.cu`.
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
        assert_eq!([16384, 16385, usize::MAX].map(blocks), [(32, 512); 3]);
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
