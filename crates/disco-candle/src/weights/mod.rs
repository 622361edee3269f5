//! Sharded weights: each rank reads only its own bytes of a model's files.
//!
//! [`Weights`] opens files of safetensors or GGUF and reads their headers. A [`Plan`] says how each tensor is split over
//! the ranks; it is data that a program prints, writes and parses. [`Shards`] is the view of one rank: it reads this
//! rank's [`Part`] of each tensor.
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::Arc;
//!
//! use candle_core::{DType, Device, Tensor};
//! use disco_candle::weights::{Plan, Shards, Split, Weights};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! let tensor = Tensor::arange(0f32, 12., &Device::Cpu)?.reshape((3, 4))?;
//! candle_core::safetensors::save(&HashMap::from([("up.weight", tensor)]), &path)?;
//!
//! let weights = Arc::new(Weights::open(&path)?);
//! // Rows are split over the ranks; rank 0 of 2 has two of three rows.
//! let plan = Plan::new().with("*.weight", Split::even(0, 1));
//! let shards = Shards::new(weights, plan, 0, 2, DType::F32, Device::Cpu);
//! let part = shards.tensor_of("up.weight", &[3, 4])?;
//! assert_eq!(part.to_vec2::<f32>()?, [[0., 1., 2., 3.], [4., 5., 6., 7.]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//! files ─ header ─┬─ Weights ── name, shape, encoding, position of each tensor
//!                 │      │ read(name, part): bytes of the part → dequantise or convert → candle tensor
//! Plan ── rules ──┴─ Shards ─── part of this rank ── save / load: one file for each rank
//! ```
//!
//! # How bytes are read
//! Rows are one contiguous read with `pread` into the memory of the new tensor: no second copy, and a file that another
//! process truncates is an error. Columns are short pieces, one for each row. A system call for each would cost several
//! times the copy, so that pieces below 16 KiB are copied from a memory map, and only the bytes of the part are copied. A
//! file that another process truncates while such a copy runs ends the process with `SIGBUS`; the length is checked
//! before each tensor. Replace files of weights by renaming, and do not write to them in place. Quantised tensors are cut
//! at blocks before they are dequantised. [`Weights::bytes_read`] counts the bytes.
//!
//! # Limits
//! Headers are untrusted: lengths are checked against the length of the file before memory is allocated, and memory for
//! tensors is allocated fallibly. A safetensors header may have 100 MB, a GGUF header 256 MiB.

mod codes;
mod error;
mod files;
mod find;
mod foreign;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod gguf;
mod grids;
mod info;
mod layout;
mod map;
mod memory;
mod part;
mod plan;
mod plan_text;
mod read;
mod safetensors;
mod saved;
mod shards;
mod source;
mod split;

pub use codes::Codes;
pub use error::WeightsError;
pub use files::Weights;
pub use foreign::foreign;
pub use info::{Encoding, TensorInfo};
pub use part::Part;
pub use plan::Plan;
pub use shards::Shards;
pub use split::{Block, Cut, Split};
