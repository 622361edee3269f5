//! The kernels of the source.

use std::ffi::CStr;

use disco_core::DType;

use super::choice::Algorithm;

/// The one that only meets.
pub const BARRIER: &CStr = c"disco_barrier";

/// Those that sum.
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

/// The kernel that sums elements of this type so. None where there is none.
pub fn name(algorithm: Algorithm, dtype: DType) -> Option<&'static CStr> {
    KERNELS.iter().find(|row| (row.0, row.1) == (algorithm, dtype)).map(|row| row.2)
}
