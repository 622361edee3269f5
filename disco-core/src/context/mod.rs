//! The context of worker functions.

mod emit;
mod emitting;
mod watched;
mod worker;

pub(crate) use emitting::{WINDOW, WINDOW_BYTES};
pub use worker::WorkerContext;
