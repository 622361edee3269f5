//! The context of worker functions.

mod watched;
mod worker;

pub use worker::WorkerContext;
