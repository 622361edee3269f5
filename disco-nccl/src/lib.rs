//! Disco's data plane on NVIDIA GPUs: the backends `nccl` and `cuda_p2p`, and the device kind `cuda`.
//!
//! ```text
//!  disco_core::Backend    disco_core::DeviceApi
//!         ▲                       ▲
//!      backend ───────────────── cuda     backend  search paths of NCCL; communicators are those of disco_ccl
//!         │                       │       cuda     the CUDA driver: devices, memory, the stream of each worker
//!        p2p ─────────────────────┘       p2p      all-reduce kernels over peer memory of one machine
//! ```
//!
//! Building this crate needs neither a driver nor NCCL. Both are loaded at run time; if one is missing, its first use
//! returns [`Unavailable`](disco_core::Unavailable), which lists each path that was tried. A program that names this
//! crate has registered both backends.
//!
//! ```
//! use disco_core::{Backend as _, CommunicatorExt as _, DType, Reduction, Result, WorkerContext};
//!
//! /// A worker function: sums a tensor over all workers, on their GPUs.
//! fn sum(ctx: &mut WorkerContext) -> Result<()> {
//!     let gradient = ctx.empty(DType::F32, [1 << 20])?;
//!     ctx.comm()?.all_reduce_in_place(&gradient, Reduction::Sum)?;
//!     ctx.comm()?.synchronize()
//! }
//!
//! match disco_nccl::BACKEND.probe() {
//!     Ok(probe) => println!("found {}", probe.library),
//!     Err(unavailable) => println!("{unavailable}"),
//! }
//! # _ = sum;
//! ```
//!
//! Next: [`BACKEND`] and [`P2P`]; [`cuda::stream`] for kernels of a program on a worker's stream;
//! [`cuda::WorkerStream`] for a program with streams and memory of its own; [`cuda::capture`] for CUDA graphs;
//! [`extension`] for functions of NCCL beyond Disco's contract; [`p2p::kernels`] for the algorithms.

#![doc(html_root_url = "https://docs.rs/disco-nccl/latest")]

mod backend;
pub mod cuda;
pub mod p2p;

pub use backend::{BACKEND, P2P};
pub use disco_ccl::{Extension, extension};
pub use {cudarc, disco_ccl, disco_dl};
