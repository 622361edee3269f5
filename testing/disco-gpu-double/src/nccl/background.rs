//! Background work of calls on non-blocking communicators, and the faults that tests inject into calls.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::abi::Code;
use super::clique::Aborted;
use super::comm::Comm;
use super::{group, text};
use crate::settings;
use crate::settings::faults::{self, Action};

/// An error code and its text.
#[derive(Debug, serde::Deserialize, serde::Serialize)]
pub(crate) struct Failure(pub(crate) Code, pub(crate) String);

/// Time until a call with the fault `block` gives up.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum duration of background work, in µs, so that callers can observe the state in progress.
const BACKGROUND_US: u64 = 200;

impl From<Aborted> for Failure {
    fn from(Aborted: Aborted) -> Self {
        Self(Code::INTERNAL_ERROR, "the communicator was aborted".to_owned())
    }
}

/// Blocks the call until an abort: the fault `block`.
pub(crate) fn block(comm: &Comm) -> Result<(), Code> {
    let is_aborted =
        comm.membership_if_any().is_some_and(|membership| membership.clique.wait_for_abort(comm, Some(BLOCK_TIMEOUT)));
    let code = if is_aborted { Code::INTERNAL_ERROR } else { Code::SYSTEM_ERROR };
    Err(text::refuse(code, "injected fault: the call was blocked"))
}

/// The fault of a call. A fault that is a code is returned as the error at once.
pub(crate) fn fault(function: &str, rank: usize) -> Result<Option<Action>, Code> {
    match faults::next(function, rank) {
        Some(Action::Code(code)) => Err(text::refuse(Code(code), format!("{function}: injected fault"))),
        fault => Ok(fault),
    }
}

/// Sleeps for the minimum duration of background work.
pub(crate) fn delay_background() {
    settings::read().delay_at_least(BACKGROUND_US);
}

/// Runs the body of a call, in the background if the communicator is non-blocking. An error is also set on the
/// children.
pub(crate) fn finish_call(
    comm: &Arc<Comm>,
    children: Vec<Arc<Comm>>,
    fault: Option<Action>,
    body: impl FnOnce(&Arc<Comm>) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Code> {
    let own = Arc::clone(comm);
    let finish = move || {
        let outcome = with_fault(&own, fault, body);
        for comm in children.iter().chain([&own]) {
            match &outcome {
                Ok(()) => comm.end(),
                Err(Failure(code, why)) => comm.fail(*code, why),
            }
        }
        outcome.map_err(|Failure(code, why)| text::refuse(code, why))
    };
    if comm.is_blocking {
        return finish();
    }
    thread::spawn(move || {
        delay_background();
        // The error is stored in the communicator.
        let _: Result<(), Code> = finish();
    });
    Err(Code::IN_PROGRESS)
}

/// Runs the body of a call, or the injected fault instead.
pub(crate) fn with_fault(
    comm: &Arc<Comm>,
    fault: Option<Action>,
    body: impl FnOnce(&Arc<Comm>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match fault {
        Some(Action::Async(code)) => Err(Failure(Code(code), "injected fault".to_owned())),
        Some(_) => {
            if let Some(membership) = comm.membership_if_any() {
                membership.clique.wait_for_abort(comm, None);
            }
            Err(Aborted.into())
        }
        None => body(comm),
    }
}

/// Rejects calls that the double does not support in a group.
pub(crate) fn reject_in_group(function: &str) -> Result<(), Code> {
    if group::is_open() {
        return Err(text::refuse(
            Code::INVALID_USAGE,
            format!("{function}: the double does not support this call in a group"),
        ));
    }
    Ok(())
}
