//! The choice of the algorithm by topology and size.

use disco_ccl::p2p::{Topology, bytes_of};
use disco_core::Result;

use super::params::{MAX_VECTORS, MAX_WORLD, VECTOR};

/// An all-reduce algorithm.
#[allow(clippy::exhaustive_enums, reason = "one kernel each")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Each rank reads all inputs.
    OneShot,
    /// Each rank sums one slice, then reads the other slices.
    TwoShot,
    /// Each half of eight ranks sums its inputs; each rank adds its relay's sum of the other half.
    HybridCubeMesh,
}

/// The largest input of each algorithm, in bytes.
#[allow(clippy::exhaustive_structs, reason = "users set these")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// One-shot, if all GPUs are connected.
    pub one_shot: usize,
    /// One-shot of two ranks, which moves as many bytes as two-shot and meets once less.
    pub one_shot_of_two: usize,
    /// Two-shot, if all GPUs are connected.
    pub two_shot: usize,
    /// Hybrid cube mesh.
    pub hybrid_cube_mesh: usize,
}

impl Thresholds {
    /// The thresholds of PyTorch's `IntraNodeComm`; two ranks use only one-shot, which is faster at all sizes (H100).
    pub const REFERENCE: Self =
        Self { one_shot: 256 << 10, one_shot_of_two: 10 << 20, two_shot: 10 << 20, hybrid_cube_mesh: 256 << 10 };

    /// [`Self::REFERENCE`], with `DISCO_P2P_ONE_SHOT` in place of the thresholds of one-shot.
    ///
    /// # Errors
    /// The value of the variable is not a number of bytes.
    pub fn from_env() -> Result<Self> {
        let otherwise = Self::REFERENCE;
        Ok(Self {
            one_shot: bytes_of("DISCO_P2P_ONE_SHOT", otherwise.one_shot)?,
            one_shot_of_two: bytes_of("DISCO_P2P_ONE_SHOT", otherwise.one_shot_of_two)?,
            ..otherwise
        })
    }

    /// The algorithm for a sum of `bytes` bytes over `world` ranks with shared buffers of `buffer` bytes. `None` if the
    /// sum is left to NCCL.
    pub fn choose(&self, topology: Topology, bytes: usize, world: usize, buffer: usize) -> Option<Algorithm> {
        let fits = (2..=MAX_WORLD).contains(&world)
            && bytes > 0
            && bytes.is_multiple_of(VECTOR)
            && bytes / VECTOR <= MAX_VECTORS
            && bytes <= buffer;
        let one_shot = if world == 2 { self.one_shot_of_two } else { self.one_shot };
        match topology {
            Topology::FullyConnected if fits && bytes <= one_shot => Some(Algorithm::OneShot),
            Topology::FullyConnected if fits && bytes <= self.two_shot => Some(Algorithm::TwoShot),
            Topology::HybridCubeMesh { .. } if fits && world == MAX_WORLD => {
                (bytes <= self.hybrid_cube_mesh && bytes <= buffer / 2).then_some(Algorithm::HybridCubeMesh)
            }
            _ => None,
        }
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self::REFERENCE
    }
}

/// [`Thresholds::choose`] with [`Thresholds::REFERENCE`].
pub fn choose(topology: Topology, bytes: usize, world: usize, buffer: usize) -> Option<Algorithm> {
    Thresholds::REFERENCE.choose(topology, bytes, world, buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;
    const BUFFER: usize = 10 << 20;

    #[test]
    fn full_connection_chooses_by_size() {
        let chosen = |bytes| choose(Topology::FullyConnected, bytes, 5, BUFFER);
        assert_eq!([16, 256 * KIB].map(chosen), [Some(Algorithm::OneShot); 2]);
        assert_eq!([256 * KIB + 16, BUFFER].map(chosen), [Some(Algorithm::TwoShot); 2]);
        assert_eq!(chosen(BUFFER + 16), None);
        let wide = Thresholds { two_shot: usize::MAX, ..Thresholds::REFERENCE };
        assert_eq!(wide.choose(Topology::FullyConnected, BUFFER + 16, 5, 4 * BUFFER), Some(Algorithm::TwoShot));
        assert_eq!(wide.choose(Topology::FullyConnected, 1 << 40, 5, usize::MAX), None);
    }

    #[test]
    fn two_ranks_choose_one_shot_for_all_sizes_unless_the_threshold_is_set() {
        let chosen = |thresholds: Thresholds| thresholds.choose(Topology::FullyConnected, BUFFER, 2, BUFFER);
        assert_eq!(chosen(Thresholds::REFERENCE), Some(Algorithm::OneShot));
        assert_eq!(chosen(Thresholds { one_shot_of_two: 0, ..Thresholds::REFERENCE }), Some(Algorithm::TwoShot));
    }

    #[test]
    fn only_whole_vectors_that_fit_the_buffer_have_an_algorithm() {
        let chosen = |bytes, buffer| choose(Topology::FullyConnected, bytes, 2, buffer);
        assert_eq!([0, 8, 24, 257].map(|bytes| chosen(bytes, BUFFER)), [None; 4]);
        assert_eq!((chosen(64, 64), chosen(80, 64)), (Some(Algorithm::OneShot), None));
    }

    #[test]
    fn only_worlds_of_two_to_eight_have_kernels() {
        let has = |world| choose(Topology::FullyConnected, 16, world, BUFFER).is_some();
        let worlds: Vec<usize> = (0..20).filter(|&world| has(world)).collect();
        assert_eq!(worlds, [2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn cube_mesh_needs_eight_ranks_and_twice_the_buffer() {
        let cube = Topology::HybridCubeMesh { relay: [4, 5, 6, 7, 0, 1, 2, 3], half: 0b1111 };
        let chosen = |bytes, world, buffer| choose(cube, bytes, world, buffer);
        assert_eq!(chosen(256 * KIB, 8, 512 * KIB), Some(Algorithm::HybridCubeMesh));
        assert_eq!(chosen(256 * KIB, 8, 512 * KIB - 16), None);
        assert_eq!((chosen(256 * KIB + 16, 8, BUFFER), chosen(16, 4, BUFFER)), (None, None));
    }

    #[test]
    fn an_unknown_topology_has_no_algorithm() {
        assert_eq!(choose(Topology::Unknown, 16, 8, BUFFER), None);
    }
}
