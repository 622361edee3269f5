//! Sessions whose workers are outside of this process. They need Linux.

mod launcher;
mod options;
mod start;

pub(crate) use launcher::with_launcher;
pub(crate) use options::Options;
pub use options::{NodeOptions, ProcessOptions};
pub(crate) use start::attach;
