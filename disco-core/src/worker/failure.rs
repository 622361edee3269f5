//! Errors and panics of worker functions as [`Failure`]s.

use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abort_cause::AbortCause;
use crate::error::{ErrorKind, Failure, UserError, causes, chain, panic_text};
use crate::function::BoxError;
use crate::id::{RegisterId, WorkerId};

/// An error for a panic of user code.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
struct Panicked(String);

/// Runs `work` and converts a panic to an error. With `panic = "abort"`, a panic ends the process.
#[inline]
pub(super) fn catch<T>(work: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError> {
    // A panic can only corrupt the state of this worker, which is poisoned afterwards.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(Panicked(panic_text(&*payload)).into()))
}

/// The failure with its operation, position and cause.
pub(super) fn describe(
    worker: WorkerId,
    command: u64,
    operation: &str,
    register: Option<RegisterId>,
    error: &(dyn StdError + 'static),
) -> Failure {
    Failure {
        worker,
        command,
        operation: operation.to_owned(),
        register,
        message: error.to_string(),
        causes: causes(error),
        aborted: AbortCause::find(error).is_some(),
        kind: if error.is::<Panicked>() { ErrorKind::Panicked } else { ErrorKind::of(error) },
        // If the program's serde code panics, only the value of the error is lost.
        user: catch_unwind(AssertUnwindSafe(|| chain(error).find_map(UserError::of))).unwrap_or(None),
    }
}
