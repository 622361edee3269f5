//! NCCL's name, and where it may be.

use disco_ccl::{Backend, Vendor};
use disco_core::DeviceKind;

use crate::cuda;

/// The backend named `nccl`: device memory, one GPU a rank.
pub static BACKEND: Backend = Backend::new(VENDOR, DeviceKind::Cuda, cuda::details);

disco_core::register_backend!(BACKEND);

const VENDOR: Vendor = Vendor {
    backend: "nccl",
    library: "NCCL",
    variable: "DISCO_NCCL_LIBRARY",
    candidates: &["libnccl.so.2", "libnccl.so", "/usr/local/cuda/lib64/libnccl.so.2", "/opt/cuda/lib64/libnccl.so.2"],
    wheels: &["nvidia/nccl/lib/libnccl.so.2"],
};
