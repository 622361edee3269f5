//! The failure of a worker, in the form that crosses lanes.
//!
//! # Invariants
//! - Programs decide by values, not by texts. `Error::kind` gives the `ErrorKind` of an error, on the controller and
//!   on workers: a worker computes the kind of its error from the chain of causes (the first error of Disco or of the
//!   system in it). Lanes carry `Failure::kind` with the backend, the function and the code of a vendor's library,
//!   the system's error code or the number of missing bytes. `Error::Lost` has a `Loss`: the peer (workers as a
//!   `WorkerRange` with their node, a node, the controller, a rank) and the `LossCause` (the signal or exit code of a
//!   process, silence with its limit, a closed connection, garbage). A node passes on the cause of the loss of one of
//!   its workers as a value. Lanes cut texts of failures and losses at 64 KiB.
//! - An error of a type that the program has registered (`register_error!`) is sent as the name of its type and its
//!   content as bytes (`Failure::user`), in all kinds of sessions. `Error::downcast_ref` decodes it. The content is at
//!   most 64 KiB; of a larger error only the text is sent.

use std::fmt;
use std::sync::Arc;

use crate::error_kind::ErrorKind;
use crate::id::{RegisterId, WorkerId};
use crate::user_error::UserError;

/// The first error of a worker: the function, the command and the reason.
#[allow(
    clippy::exhaustive_structs,
    reason = "lanes write one for a reply that they can not pass on, and must set every field"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The worker that failed.
    pub worker: WorkerId,
    /// The command's number, counted from 1 over the session.
    pub command: u64,
    /// The name of the worker function or the command.
    pub operation: String,
    /// The register that the command sets, if any; it is poisoned.
    pub register: Option<RegisterId>,
    /// The text of the error.
    pub message: String,
    /// The texts of the error's causes, nearest first.
    pub causes: Vec<String>,
    /// True if the worker failed only because another worker had failed.
    pub aborted: bool,
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The error of a type registered with `register_error!`: the error itself or the first such cause.
    pub user: Option<UserError>,
}

impl Failure {
    /// The same failure, of `worker`. For lanes and sessions, which know workers by [places and numbers](crate::Members).
    #[must_use]
    pub fn of_worker(self: Arc<Self>, worker: WorkerId) -> Arc<Self> {
        if self.worker == worker { self } else { Arc::new(Self { worker, ..Self::clone(&self) }) }
    }
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
