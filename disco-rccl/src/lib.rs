//! Tensors between AMD GPUs: the backend `rccl` and the device kind `rocm`.
//!
//! ```text
//! backend   RCCL's name and where it may be; its communicators are those of disco_ccl
//! hip       the device library: its functions, devices, each worker's stream
//! ```
//!
//! Neither HIP nor RCCL is needed to build this or to run a program that has it: what is not there is
//! [`Unavailable`](disco_core::Unavailable) when it is asked for. Programs that mention this crate have both registered.

mod backend;
mod hip;

pub use backend::{BACKEND, P2P};
pub use disco_ccl;
pub use disco_ccl::{Extension, extension};
pub use hip::{Hip, capture};
