//! Disco's kernels (`disco-nccl/src/p2p/kernels`), written again for the host: on the same memory they do the same. A stream's thread
//! runs one block after the other, and in each what its threads do.
//!
//! ```text
//! params     what they are launched with
//! launch     the memory that a launch touches
//! handshake  handshake.cuh: how blocks meet, and give up
//! sum        all_reduce.cu: what they do between handshakes
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

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Each rank reads what all have.
    OneShot(Element),
    /// Each sums a slice.
    TwoShot(Element),
    /// Four sum, and add what their relays have.
    HybridCubeMesh(Element),
    /// All meet.
    Barrier,
}

/// By name.
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

/// On how many blocks, and threads in each, a kernel runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// How many blocks.
    pub(crate) blocks: usize,
    /// How many threads each has.
    pub(crate) threads: usize,
}

/// A launch, as work of a device. Threads that no rank is met by would wait for nobody: there are as many as ranks at least.
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
