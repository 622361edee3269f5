//! Language models of llama and of families that build on it ([`Features`]), computed by any number of ranks.
//!
//! ```text
//! every rank   tokens ─▶ embedding (own rows of the vocabulary) ─▶ all_reduce
//! per layer    norm ─▶ own query heads, own kv heads, own part of the cache ─▶ own columns of o ─▶ all_reduce
//!              norm ─▶ own rows of gate and up ─▶ own columns of down ─▶ all_reduce
//! every rank   norm ─▶ logits of its own rows of the vocabulary ─▶ all_gather, or the largest of all ranks
//! ```
//!
//! [`Config`] comes from a GGUF file or from the `config.json` beside safetensors files. [`plan()`] says which part of
//! each tensor a rank reads. [`Llama`] computes, with the keys and values of earlier tokens in a [`Cache`];
//! [`Llama::generate`] begins a [`Generation`], whose tokens it chooses by a [`Sampler`]. Every rank
//! calls the same methods in the same order with the same tokens, and gets the same results.
//!
//! The numbers of query heads, of kv heads and of ranks are independent. A kv head is replicated on each rank that has
//! one of its query heads. A rank without heads takes part in the collectives only.

mod attention;
mod cache;
mod config;
mod error;
mod family;
mod generation;
mod head_norms;
mod json;
mod mask;
mod mlp;
mod model;
mod names;
mod parts;
mod plan;
mod rope;
mod sampler;
mod scaling;
mod tensors;

pub use cache::Cache;
pub use config::{Config, Pairs};
pub use error::LlamaError;
pub use family::{Activation, Features};
pub use generation::{Generation, Steps};
pub use model::Llama;
pub use parts::Precision;
pub use plan::plan;
pub use sampler::Sampler;
pub use scaling::Scaling;
