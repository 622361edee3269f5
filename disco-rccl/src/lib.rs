//! Disco's data plane on AMD GPUs: the backends `rccl` and `rocm_p2p`, and the device kind `rocm`.
//!
//! ```text
//!  disco_core::Backend    disco_core::DeviceApi
//!         ▲                       ▲
//!      backend ───────────────── hip      backend  search paths of RCCL; communicators are those of disco_ccl
//!                                         hip      HIP: devices, memory, the stream of each worker
//! ```
//!
//! Building this crate needs neither HIP nor RCCL. Both are loaded at run time; if one is missing, its first use
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
//! match disco_rccl::BACKEND.probe() {
//!     Ok(probe) => println!("found {}", probe.library),
//!     Err(unavailable) => println!("{unavailable}"),
//! }
//! # _ = sum;
//! ```
//!
//! Next: [`BACKEND`] and [`P2P`]; [`capture`] for HIP graphs; [`extension`] for functions of RCCL beyond Disco's
//! contract.

#![doc(html_root_url = "https://docs.rs/disco-rccl/latest")]

mod backend;
mod hip;

pub use backend::{BACKEND, P2P};
pub use disco_ccl;
pub use disco_ccl::{Extension, extension};
pub use hip::{Hip, capture};
