//! Serves a language model on the workers of Disco.

pub mod engine;
