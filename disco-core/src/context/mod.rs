//! What a worker function sees of its worker.

mod watched;
mod worker;

pub use worker::WorkerContext;
