//! Tensors between NVIDIA GPUs: the backends `nccl` and `cuda_p2p`, and the device kind `cuda`.
//!
//! ```text
//! backend   NCCL's name and where it may be, and the backend around it; communicators are those of disco_ccl
//! cuda      the driver, found before cudarc is asked; devices, memory, each worker's stream
//! p2p       GPUs of one machine that read and write each other's memory: the links between them, and kernels over these
//! ```
//!
//! Neither a driver nor NCCL is needed to build this or to run a program that has it: what is not there is
//! [`Unavailable`](disco_core::Unavailable) when it is asked for. Programs that mention this crate have both registered.

mod backend;
pub mod cuda;
pub mod p2p;

pub use backend::{BACKEND, P2P};
pub use disco_ccl::{Extension, extension};
pub use {cudarc, disco_ccl};
