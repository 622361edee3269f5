//! Serves a language model on the workers of Disco.
//!
//! The library is for the program and its tests: its interface changes with the program.

#![allow(clippy::exhaustive_structs, clippy::exhaustive_enums, reason = "nothing else depends on the library")]

mod admission;
mod api;
mod calls;
pub mod engine;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod grammar;
pub mod health;
pub mod http;
pub mod metrics;
mod sync;
mod text;
pub mod trace;
