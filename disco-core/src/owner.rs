//! The process that owns a value. The child of a fork has copies of its parent's sessions, and must not end their workers.

use std::process;

use crate::error::{Error, Result};

/// The process that has made a value which ends something outside of it when it is dropped: workers, listeners, threads.
/// Dropping the copy in a forked child does nothing.
#[derive(Clone, Copy, Debug)]
pub struct Owner(u32);

impl Default for Owner {
    /// This process.
    fn default() -> Self {
        Self(process::id())
    }
}

impl Owner {
    /// Whether this process is the owner, and no forked child.
    pub fn is_here(self) -> bool {
        self.0 == process::id()
    }

    /// # Errors
    /// This process is a forked child of the owner.
    pub fn check(self) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Error::state(
            "this process was forked after the session had started, and the session stays with the parent process: start \
             another session in this process",
        ))
    }
}
