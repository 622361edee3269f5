//! The interface between the suite and a lane.

use std::fmt::Debug;
use std::time::Duration;

use disco_core::{Channel, Result, WorkerRange};

use super::role::Role;

/// The interface between the suite and a lane.
pub trait Harness: Debug + Send + Sync {
    /// The prefix of the names of the checks: `threads`.
    fn name(&self) -> &str;

    /// Makes a lane whose workers [play](super::play) `role`. The suite starts it.
    ///
    /// # Errors
    /// The lane can't be made.
    fn lane(&self, workers: WorkerRange, role: Role) -> Result<Box<dyn Channel>>;

    /// Why the lane can't pass a case, by the name of the case, which is skipped then. By default it passes all.
    fn cannot(&self, case: &str) -> Option<&'static str> {
        let _ = case;
        None
    }

    /// Timeout of one step of a case; 30 s by default. Only a broken lane reaches it.
    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }
}
