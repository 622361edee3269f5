//! The context of worker functions.

mod emit;
mod emitting;
mod kept;
mod watched;
mod worker;

pub(crate) use emitting::{WINDOW, WINDOW_BYTES};
pub use kept::Kept;
pub use worker::WorkerContext;
