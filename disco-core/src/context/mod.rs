//! The context of worker functions.

mod emitting;
mod watched;
mod worker;

pub use worker::WorkerContext;
