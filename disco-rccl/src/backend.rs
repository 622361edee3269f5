//! RCCL's name, and where it may be.

use disco_ccl::{Backend, Vendor};
use disco_core::DeviceKind;

use crate::hip;

/// The backend named `rccl`: device memory, one GPU a rank.
pub static BACKEND: Backend = Backend::new(VENDOR, DeviceKind::Rocm, hip::details);

disco_core::register_backend!(BACKEND);

const VENDOR: Vendor = Vendor {
    backend: "rccl",
    library: "RCCL",
    variable: "DISCO_RCCL_LIBRARY",
    candidates: &["librccl.so.1", "librccl.so", "/opt/rocm/lib/librccl.so.1"],
    wheels: &["torch/lib/librccl.so"],
};
