//! Errors and panics of worker functions as [`Failure`]s.

use std::any::Any;
use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, ErrorKind, Failure, UserError, causes, chain};
use crate::function::BoxError;
use crate::id::{RegisterId, WorkerId};

/// A panic of user code, as an error.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
struct Panicked(String);

/// Runs `work`; a panic becomes an error. (With `panic = "abort"` it ends the process, as everywhere.)
pub(super) fn catch<T>(work: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError> {
    // What a panic leaves behind is this worker's own state, which is poisoned from then on.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(Panicked(text(&*payload)).into()))
}

/// Says what failed, where and why.
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
        aborted: Error::abort_cause(error).is_some(),
        kind: if error.is::<Panicked>() { ErrorKind::Panicked } else { ErrorKind::of(error) },
        // A panic in the program's own serde code loses the value of the error, and no more.
        user: catch_unwind(AssertUnwindSafe(|| chain(error).find_map(UserError::of))).unwrap_or(None),
    }
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
