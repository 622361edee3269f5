//! The names of the kernels in `all_reduce.cu`.

use std::ffi::CStr;

use disco_core::DType;

use super::choice::Algorithm;

/// The barrier: a handshake of all ranks.
pub const BARRIER: &CStr = c"disco_barrier";

/// The all-reduce kernels.
pub const KERNELS: [(Algorithm, DType, &CStr); 9] = [
    (Algorithm::OneShot, DType::F32, c"disco_one_shot_f32"),
    (Algorithm::OneShot, DType::F16, c"disco_one_shot_f16"),
    (Algorithm::OneShot, DType::BF16, c"disco_one_shot_bf16"),
    (Algorithm::TwoShot, DType::F32, c"disco_two_shot_f32"),
    (Algorithm::TwoShot, DType::F16, c"disco_two_shot_f16"),
    (Algorithm::TwoShot, DType::BF16, c"disco_two_shot_bf16"),
    (Algorithm::HybridCubeMesh, DType::F32, c"disco_hybrid_cube_mesh_f32"),
    (Algorithm::HybridCubeMesh, DType::F16, c"disco_hybrid_cube_mesh_f16"),
    (Algorithm::HybridCubeMesh, DType::BF16, c"disco_hybrid_cube_mesh_bf16"),
];

/// The name of the kernel for an algorithm and a dtype. `None` if there is no such kernel.
pub fn name(algorithm: Algorithm, dtype: DType) -> Option<&'static CStr> {
    KERNELS.iter().find(|row| (row.0, row.1) == (algorithm, dtype)).map(|row| row.2)
}
