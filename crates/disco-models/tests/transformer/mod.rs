//! Models of the llama architecture on several workers, compared with candle-transformers' own models in one process.

mod chats;
mod configuration;
mod conversion;
mod converted;
mod copies;
mod decoding;
#[path = "../../examples/compare/dequantise.rs"]
mod dequantise;
mod digests;
mod draw;
mod families;
mod fleets;
mod formats;
#[allow(dead_code, reason = "as the test needs")]
#[path = "../../examples/generate/generate.rs"]
mod generate;
#[path = "../../examples/generate/load.rs"]
mod load;
mod logits;
mod long;
mod losses;
mod mixed;
mod mpi;
mod ours;
mod random;
mod reference;
mod refused;
mod scales;
mod serving;
mod slow;
mod steps;
mod text;
mod tokens;
#[path = "../../examples/generate/verify.rs"]
mod verify;
mod vocabularies;
