//! The backends `rccl` and `rocm_p2p`, and the search paths of RCCL.

use std::sync::Arc;

use disco_ccl::p2p::{self, BusId, Mesh};
use disco_ccl::{Backend, Runtime, Vendor};
use disco_core::{DeviceKind, Error, Result};

use crate::hip;

/// The backend `rccl`: collectives of RCCL on device memory, one GPU for each rank.
pub static BACKEND: Backend = Backend::new(VENDOR, DeviceKind::Rocm, hip::details);

/// The backend `rocm_p2p`: RCCL for all collectives, and memory that the ranks of one machine share. Disco has
/// all-reduce kernels for CUDA only, and does not query the links between AMD GPUs.
pub static P2P: p2p::Backend = p2p::Backend::new("rocm_p2p", &BACKEND, p2p::Vendor { links, check, kernels });

disco_core::register_backend!(BACKEND);
disco_core::register_backend!(P2P);

fn links(_: &[BusId]) -> Result<Mesh> {
    Err(Error::missing("Disco does not query the links between AMD GPUs"))
}

fn check() -> Result<()> {
    Ok(())
}

fn kernels(_: &Arc<Runtime>) -> p2p::Preparation {
    Err("Disco has all-reduce kernels for CUDA only".to_owned())
}

const VENDOR: Vendor = Vendor {
    backend: "rccl",
    library: "RCCL",
    variable: "DISCO_RCCL_LIBRARY",
    candidates: &["librccl.so.1", "librccl.so", "/opt/rocm/lib/librccl.so.1"],
    wheels: &["torch/lib/librccl.so"],
    remedy: "install it with ROCm or with PyTorch for ROCm, or set DISCO_RCCL_LIBRARY to its path",
};
