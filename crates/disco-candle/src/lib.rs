//! Models of [candle](https://docs.rs/candle-core) on Disco: collectives with gradients, layers that are split over
//! ranks, and weights of which each rank reads its share.
//!
//! ```text
//! safetensors, GGUF ──▶ weights::Shards   this rank's share of each tensor, by a split plan
//!                              │
//!                              ▼
//! x ──▶ ColumnParallelLinear ──▶ RowParallelLinear ──▶ y, the same on all ranks
//!                                      │
//!                                 Comm: all_reduce over `local`, MPI, NCCL or RCCL
//! ```
//!
//! A worker function makes a [`Comm`] from its context. A model keeps clones of it in its layers, and stays on the
//! worker between calls as an [`Opaque`](disco_core::Opaque) value:
//!
//! ```
//! use candle_core::{DType, Device, Module, Result, Tensor};
//! use disco_candle::{ColumnParallelLinear, Comm, Matrix, RowParallelLinear, to_candle};
//! use disco_core::{Opaque, WorkerContext};
//!
//! /// Worker function: this worker's half of a block with 8 hidden units.
//! fn load(ctx: &mut WorkerContext) -> Result<Opaque> {
//!     let comm = Comm::world(ctx).map_err(to_candle)?;
//!     let own = 8 / comm.size();
//!     let weight = |dims| Tensor::randn(0f32, 1.0, dims, &Device::Cpu).map(Matrix::dense);
//!     let hidden = ColumnParallelLinear::new(weight((own, 4))?, None, comm.clone());
//!     let output = RowParallelLinear::new(weight((4, own))?, None, comm);
//!     let block = candle_nn::seq().add(hidden).add(candle_nn::Activation::Silu).add(output);
//!     Ok(Opaque::new(block))
//! }
//!
//! /// Worker function: the sum of the outputs for an input of ones.
//! fn forward(_: &mut WorkerContext, block: std::rc::Rc<candle_nn::Sequential>) -> Result<f32> {
//!     block.forward(&Tensor::ones((1, 4), DType::F32, &Device::Cpu)?)?.sum_all()?.to_scalar()
//! }
//! # disco_core::register_function!("doc.load", load);
//! # disco_core::register_function!("doc.forward", forward);
//! ```
//!
//! | to do | see |
//! |---|---|
//! | collectives on tensors of candle, in place or with gradients | the methods of [`Comm`] |
//! | split layers | [`ColumnParallelLinear`], [`RowParallelLinear`], [`NodesLinear`], [`VocabParallelEmbedding`], [`VocabParallelLogits`] |
//! | split attention heads that do not divide by the ranks | [`HeadPlan`] |
//! | attention of many sequences to keys and values in blocks | [`paged`] |
//! | functions whose bits are the same on any processor | [`silu`], [`silu_gated`], [`gelu`], [`sigmoid`], [`tanh`], [`softmax`], [`sin`](sin()), [`cos`](cos()) |
//! | weights from files | [`weights`] |
//! | errors of Disco inside errors of candle | [`to_candle`], [`find_disco_error`] |
//! | the device of a worker's tensors | [`device`](device()) |
//! | threads of candle's kernels | [`compute_threads`] |

#![doc(html_root_url = "https://docs.rs/disco-candle/latest")]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait for results"))]

/// The version of the bits that the kernels of the host give. It is raised by a change after which a product, an attention, a norm or
/// an activation has other bits for the same numbers, so that texts of before and after are told apart.
pub const KERNELS: u32 = 1;

mod activations;
mod agree;
mod collective;
mod comm;
#[cfg(feature = "cuda")]
pub mod cuda;
mod delta;
mod device;
mod dimension;
mod error;
mod floats;
mod functions;
mod heads;
mod lend;
mod linear;
mod matrix;
mod nodes;
pub mod paged;
mod products;
mod read;
mod runs;
mod shelf;
mod threads;
mod vocabulary;
pub mod weights;

pub use activations::{cos, gelu, sigmoid, silu, silu_gated, sin, softmax, tanh};
/// The version of candle whose types are in this crate's interface.
pub use candle_core;
pub use comm::{Comm, Stats};
pub use delta::{Delta, DeltaState, DeltaTokens};
pub use device::device;
pub use error::{find_disco_error, to_candle};
pub use floats::{rms_norm, squares};
pub use heads::{HeadPlan, even_ranges};
pub use linear::{ColumnParallelLinear, RowParallelLinear};
pub use matrix::Matrix;
pub use nodes::NodesLinear;
pub use products::cuts;
pub use read::{Reader, Reading};
pub use runs::Runs;
pub use shelf::{Numbered, Shelf};
pub use threads::compute_threads;
pub use vocabulary::{Argmax, VocabParallelEmbedding, VocabParallelLogits, not_finite};
