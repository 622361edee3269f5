//! Starts a session in one call: the lanes to all workers of a world, and the session over them.
//!
//! ```no_run
//! use disco_channel::session;
//! use disco_core::session::Deadlines;
//! use disco_core::{World, WorkerConfig};
//!
//! # fn main() -> disco_core::Result<()> {
//! let session = session::threads(WorkerConfig::new(World::new(4, 2)?), Deadlines::default())?;
//! assert_eq!(session.world().group_size(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/without_facade.rs` of the package `disco` is a whole program. A program whose workers are processes runs
//! once more for each of them: before anything else, it takes its [invitation](crate::remote::processes::Invitation::take) and
//! [serves](crate::remote::processes::serve) if there is one.

#[cfg(target_os = "linux")]
pub use crate::remote::session::{nodes, processes};
pub use crate::threads::session::threads;
