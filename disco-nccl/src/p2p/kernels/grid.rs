//! On how many blocks and threads a kernel runs. All ranks must come to the same: so they do if they have agreed on
//! [`Room`].

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
pub struct Room {
    /// How many blocks of [`MAX_THREADS`] of the kernel can be on the smallest device at once: occupancy × multiprocessors.
    pub resident: u32,
    /// How many ranks share the device that most ranks share.
    pub sharing: u32,
    /// No more blocks than these.
    pub most: u32,
}

/// Blocks are few, because they spin on multiprocessors that others could use, and enough to keep links busy. A guess, unmeasured
/// here: 32 blocks of 512 threads have 2 MiB on the way where 8 ranks are read.
pub const MOST: u32 = 32;

/// Threads are in warps of so many.
const WARP: u32 = 32;

/// The grid for a sum of so many vectors of 16 bytes. None where the ranks of a device can't all be on it at once.
pub fn grid(algorithm: Algorithm, vectors: usize, world: usize, room: Room) -> Option<Grid> {
    let at_once = match algorithm {
        Algorithm::OneShot | Algorithm::HybridCubeMesh => vectors,
        Algorithm::TwoShot => slice(vectors, world),
    };
    let at_once = u32::try_from(at_once).unwrap_or(u32::MAX);
    let most = blocks_of_each(room)?.min(room.most).min(MAX_BLOCKS as u32).max(1);
    let threads = at_once.div_ceil(WARP).clamp(1, MAX_THREADS as u32 / WARP) * WARP;
    Some(Grid { blocks: at_once.div_ceil(threads).clamp(1, most), threads })
}

/// The grid of the barrier: one block of one warp, whose threads meet a rank each. None as in [`grid`].
pub fn barrier(room: Room) -> Option<Grid> {
    blocks_of_each(room).map(|_| Grid { blocks: 1, threads: WARP })
}

/// How many blocks of each rank fit on a device at once.
fn blocks_of_each(room: Room) -> Option<u32> {
    room.resident.checked_div(room.sharing).filter(|&blocks| blocks > 0)
}

/// How many vectors each rank sums in two-shot: whole lines of 128 bytes. As in `all_reduce.cu`.
fn slice(vectors: usize, world: usize) -> usize {
    const LINE: usize = 8;
    vectors.div_ceil(world.max(1) * LINE) * LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { resident: 264, sharing: 1, most: MOST };

    fn of(algorithm: Algorithm, vectors: usize, room: Room) -> Option<(u32, u32)> {
        grid(algorithm, vectors, 8, room).map(|grid| (grid.blocks, grid.threads))
    }

    #[test]
    fn each_thread_has_a_vector_until_there_are_enough_blocks() {
        let blocks = |vectors| of(Algorithm::OneShot, vectors, ROOM).unwrap();
        assert_eq!([1, 32, 33, 512, 513].map(blocks), [(1, 32), (1, 32), (1, 64), (1, 512), (2, 512)]);
        assert_eq!([16384, 16385, usize::MAX].map(blocks), [(32, 512); 3]);
        assert_eq!(of(Algorithm::TwoShot, 8 * 512, ROOM), Some((1, 512)));
        assert_eq!(of(Algorithm::TwoShot, 8 * 512 + 1, ROOM), Some((2, 512)));
    }

    #[test]
    fn ranks_that_share_a_device_share_its_room() {
        let shared = |sharing| of(Algorithm::OneShot, 16384, Room { sharing, ..ROOM });
        assert_eq!([8, 9, 264].map(shared), [Some((32, 512)), Some((29, 512)), Some((1, 512))]);
        assert_eq!([265, 0].map(shared), [None; 2]);
        assert_eq!(barrier(Room { sharing: 265, ..ROOM }), None);
        assert_eq!(barrier(ROOM), Some(Grid { blocks: 1, threads: 32 }));
    }

    #[test]
    fn there_are_never_more_blocks_than_flags_nor_none() {
        let most = |most| of(Algorithm::OneShot, 1 << 20, Room { most, ..ROOM });
        assert_eq!([1000, 0].map(most), [Some((64, 512)), Some((1, 512))]);
    }
}
