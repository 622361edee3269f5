//! Models of the llama architecture on several workers, compared with candle-transformers' own models in one process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods, reason = "tests")]
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "as the test needs")]
#[path = "../../examples/generate/args.rs"]
mod args;
mod configuration;
#[path = "../../examples/compare/dequantise.rs"]
mod dequantise;
mod families;
#[allow(dead_code, reason = "as the test needs")]
#[path = "../../examples/generate/generate.rs"]
mod generate;
mod logits;
mod long;
mod losses;
mod mpi;
mod random;
mod reference;
mod refused;
mod steps;
#[path = "../../examples/generate/text/mod.rs"]
mod text;
#[path = "text.rs"]
mod text_tests;
mod tokens;
#[allow(dead_code, reason = "as the test needs")]
#[path = "../../examples/generate/worker.rs"]
mod worker;
