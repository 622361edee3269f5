//! The failure of a worker, as it crosses lanes.

use std::fmt;

use crate::error_kind::ErrorKind;
use crate::id::{RegisterId, WorkerId};
use crate::user_error::UserError;

/// The first error of a worker: what failed, where, and why.
#[allow(
    clippy::exhaustive_structs,
    reason = "lanes write one for a reply that they can not pass on, and must set every field"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Who failed.
    pub worker: WorkerId,
    /// The command's number, counted from 1 over the session.
    pub command: u64,
    /// The worker function, or the command's own name.
    pub operation: String,
    /// The register that was to be set, if any; it is poisoned.
    pub register: Option<RegisterId>,
    /// The error's own words.
    pub message: String,
    /// Its causes, nearest first.
    pub causes: Vec<String>,
    /// True if it failed only because another worker had.
    pub aborted: bool,
    /// What kind of error it is.
    pub kind: ErrorKind,
    /// The error itself, or the first of its causes, whose type the program has registered with `register_error!`.
    pub user: Option<UserError>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (command {}", self.worker, self.operation, self.command)?;
        if let Some(register) = self.register {
            write!(f, ", {register}")?;
        }
        write!(f, "): {}", self.message)?;
        self.causes.iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}
