//! RCCL's name, and where it may be.

use std::sync::Arc;

use disco_ccl::p2p::{self, BusId, Mesh};
use disco_ccl::{Backend, Runtime, Vendor};
use disco_core::{DeviceKind, Error, Result};

use crate::hip;

/// The backend named `rccl`: device memory, one GPU a rank.
pub static BACKEND: Backend = Backend::new(VENDOR, DeviceKind::Rocm, hip::details);

/// The backend named `rocm_p2p`: memory that ranks of a machine share, beside RCCL, by which all collectives go.
/// Kernels of ours are for CUDA alone, and links between AMD's devices are not looked at.
pub static P2P: p2p::Backend = p2p::Backend::new("rocm_p2p", &BACKEND, p2p::Vendor { links, check, kernels });

disco_core::register_backend!(BACKEND);
disco_core::register_backend!(P2P);

fn links(_: &[BusId]) -> Result<Mesh> {
    Err(Error::missing("nobody looks for links between AMD's devices"))
}

fn check() -> Result<()> {
    Ok(())
}

fn kernels(_: &Arc<Runtime>) -> p2p::Preparation {
    Err("kernels are for CUDA alone".to_owned())
}

const VENDOR: Vendor = Vendor {
    backend: "rccl",
    library: "RCCL",
    variable: "DISCO_RCCL_LIBRARY",
    candidates: &["librccl.so.1", "librccl.so", "/opt/rocm/lib/librccl.so.1"],
    wheels: &["torch/lib/librccl.so"],
};
