//! Disco's kernels (`disco-nccl/src/p2p/kernels`) for the host. They have the same effects on memory. The thread of a
//! stream runs one block after the other, and in each block the work of all its threads.
//!
//! ```text
//! params     the parameters of a launch
//! launch     the memory of a launch
//! handshake  handshake.cuh: handshakes between blocks, with timeout and abort
//! sum        all_reduce.cu: the algorithms
//! ```

mod handshake;
mod launch;
pub mod params;
mod sum;

use std::ffi::CStr;

use super::abi::Code;
use super::device::Device;
use super::stream::Work;
use launch::Launch;
use params::{MAX_BLOCKS, MAX_THREADS, Params};
use sum::Element;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Each rank reads all inputs.
    OneShot(Element),
    /// Each rank sums one slice, then reads the other slices.
    TwoShot(Element),
    /// Each rank sums its half, then adds its relay's sum.
    HybridCubeMesh(Element),
    /// A handshake of all ranks.
    Barrier,
}

/// All kernels, with their names.
pub(crate) const KERNELS: [(&CStr, Kernel); 10] = [
    (c"disco_one_shot_f32", Kernel::OneShot(Element::F32)),
    (c"disco_one_shot_f16", Kernel::OneShot(Element::F16)),
    (c"disco_one_shot_bf16", Kernel::OneShot(Element::BF16)),
    (c"disco_two_shot_f32", Kernel::TwoShot(Element::F32)),
    (c"disco_two_shot_f16", Kernel::TwoShot(Element::F16)),
    (c"disco_two_shot_bf16", Kernel::TwoShot(Element::BF16)),
    (c"disco_hybrid_cube_mesh_f32", Kernel::HybridCubeMesh(Element::F32)),
    (c"disco_hybrid_cube_mesh_f16", Kernel::HybridCubeMesh(Element::F16)),
    (c"disco_hybrid_cube_mesh_bf16", Kernel::HybridCubeMesh(Element::BF16)),
    (c"disco_barrier", Kernel::Barrier),
];

/// The grid of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Number of blocks.
    pub(crate) blocks: usize,
    /// Number of threads of each block.
    pub(crate) threads: usize,
}

/// The work of a launch. The grid must have at least as many threads as ranks, because each thread makes the handshakes
/// with one rank.
pub(crate) fn launch(kernel: Kernel, grid: Grid, params: Params, device: &'static Device) -> Result<Work, Code> {
    let ranks = params.world as usize;
    if !(1..=MAX_BLOCKS).contains(&grid.blocks) || !(1..=MAX_THREADS).contains(&grid.threads) || grid.threads < ranks {
        return Err(Code::INVALID_VALUE);
    }
    let launch = Launch::new(kernel, grid, params, device);
    Ok(Box::new(move || {
        let launch = launch.as_ref().ok_or(Code::ILLEGAL_ADDRESS)?;
        launch.check()?;
        sum::run(launch);
        Ok(())
    }))
}
