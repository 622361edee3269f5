//! Language models on Disco: families of transformers, their tokenizers and chat templates, and the choice of tokens,
//! computed by any number of ranks.
//!
//! ```text
//! files ──▶ Config, Weights, Text     what the model is; every controller and worker reads it
//!              │
//!           plan() ─▶ Shards ─▶ Transformer     one rank's part
//!
//! every rank   tokens ─▶ embedding (own rows of the vocabulary) ─▶ all_reduce
//! per layer    norm ─▶ own query heads, own kv heads, own part of the cache ─▶ all_gather ─▶ own rows of o ─▶ all_gather
//!              norm ─▶ own rows of gate and up ─▶ all_gather ─▶ own rows of down ─▶ all_gather
//! every rank   norm ─▶ logits of its own rows of the vocabulary ─▶ all_gather, or the largest of all ranks
//! ```
//!
//! [`Config`] comes from a GGUF file or from the `config.json` beside safetensors files. [`plan()`] says which part of
//! each tensor a rank reads. [`Transformer`] computes, with the keys and values of earlier tokens in a [`Cache`];
//! [`Transformer::generate`] begins a [`Generation`], whose tokens it chooses by a [`Sampler`]. Every rank
//! calls the same methods in the same order with the same tokens, and gets the same results.
//!
//! The numbers of query heads, of kv heads and of ranks are independent. A kv head is replicated on each rank that has
//! one of its query heads. On hosts, the bits of the results do not depend on the number of ranks, which may be larger
//! than that of heads. [`Sums`] has the other ways: on several hosts, and on devices, ranks have columns of o and down.
//!
//! | to do | see |
//! |---|---|
//! | models by their names on a hub (feature `hub`, on by default) | `hub` |
//! | texts to tokens and back | [`text`] |
//! | worker functions that load a model and generate | [`worker`] |
//! | worker functions for sequences that come and go, as a server needs them | [`serving`] |
//! | embeddings of sentences | [`bert`] |
//! | collectives, layers and weights for a model of your own | [`disco_candle`] |

#![doc(html_root_url = "https://docs.rs/disco-models/latest")]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait for results"))]

mod adapter;
mod attention;
pub mod bert;
mod blocks;
mod cache;
mod config;
mod delta;
pub mod encoding;
mod error;
mod experts;
mod families;
mod feed_forward;
mod fingerprint;
mod generation;
mod head_norms;
#[cfg(feature = "hub")]
pub mod hub;
mod latent;
mod layer_inputs;
mod model;
mod names;
mod norm;
mod packed;
mod paged;
mod parts;
mod plan;
mod projections;
mod ranks;
mod rope;
mod sampler;
mod scales;
pub mod serving;
mod stacks;
mod states;
mod tensors;
pub mod text;
mod units;
pub mod worker;

pub use adapter::Adapter;
pub use blocks::Pool;
pub use cache::Cache;
pub use config::{
    Activation, Attention, Config, DeltaLayout, Dense, ExpertLayout, ExpertSplit, Experts, FeedForward, GatedDelta,
    Groups, Growth, Inputs, Latent, Layer, LayerInputs, Mixer, NormKind, Norms, Packing, Pairs, Positions, Projections,
    QkNorm, Rotary, SamplingDefaults, Scaling, Scores, Sums,
};
pub use error::ModelError;
pub use fingerprint::fingerprint;
pub use generation::Generation;
pub use model::Transformer;
pub use paged::{BLOCK, Ragged, Run, RunState};
pub use parts::Precision;
pub use plan::{block_bytes, memory_bytes, plan, state_bytes};
pub use sampler::Sampler;
