//! The HTTP layer, with a real tokenizer and a double of the engine that sends what each test says.

mod admission;
mod browsers;
mod chat;
mod client;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
mod completions;
mod connections;
mod decoding;
mod digests;
mod double;
mod drain;
mod failures;
mod fields;
mod logprobs;
mod messages;
mod model;
mod probes;
mod reasoning;
mod refused;
mod responses;
mod server;
mod stops;
mod tools;
#[cfg(feature = "otlp")]
mod traces;
