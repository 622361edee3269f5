//! The backends `nccl` and `cuda_p2p`, and the search paths of NCCL.

use disco_ccl::{Backend, Vendor, p2p};
use disco_core::DeviceKind;

use crate::cuda;

/// The backend `nccl`: collectives of NCCL on device memory, one GPU for each rank.
pub static BACKEND: Backend = Backend::new(VENDOR, DeviceKind::Cuda, cuda::details);

/// The backend `cuda_p2p`: NCCL, except that small all-reduces use Disco's own kernels over peer memory of one machine.
pub static P2P: p2p::Backend = p2p::Backend::new("cuda_p2p", &BACKEND, crate::p2p::VENDOR);

disco_core::register_backend!(BACKEND);
disco_core::register_backend!(P2P);

const VENDOR: Vendor = Vendor {
    backend: "nccl",
    library: "NCCL",
    variable: "DISCO_NCCL_LIBRARY",
    candidates: &["libnccl.so.2", "libnccl.so", "/usr/local/cuda/lib64/libnccl.so.2", "/opt/cuda/lib64/libnccl.so.2"],
    wheels: &["nvidia/nccl/lib/libnccl.so.2"],
    remedy: "install it (`pip install nvidia-nccl-cu13`), or set DISCO_NCCL_LIBRARY to its path",
};
