//! What calls of communicators go on with in the background, unless they wait, and what a test wants to go wrong with them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::abi::Code;
use super::clique::Aborted;
use super::comm::Comm;
use super::{group, text};
use crate::settings;
use crate::settings::faults::{self, Action};

/// A code, and what there is to say about it.
pub(crate) struct Failure(pub(crate) Code, pub(crate) String);

/// Until a call gives up that a test has blocked.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is done in the background takes so long at least, for a caller who does not wait to be seen.
const BACKGROUND_US: u64 = 200;

impl From<Aborted> for Failure {
    fn from(Aborted: Aborted) -> Self {
        Self(Code::INTERNAL_ERROR, "the communicator was aborted".to_owned())
    }
}

/// Has the call wait for an abort, as a test wants.
pub(crate) fn block(comm: &Comm) -> Result<(), Code> {
    let is_off = comm.seat_if_any().is_some_and(|seat| seat.clique.wait_for_abort(comm, Some(PATIENCE)));
    let code = if is_off { Code::INTERNAL_ERROR } else { Code::SYSTEM_ERROR };
    Err(text::refuse(code, "a test has blocked this call"))
}

/// What a test wants to go wrong later; the code that is to be returned at once is.
pub(crate) fn fault(function: &str, rank: usize) -> Result<Option<Action>, Code> {
    match faults::next(function, rank) {
        Some(Action::Code(code)) => Err(text::refuse(Code(code), format!("{function}: a test wants this fault"))),
        fault => Ok(fault),
    }
}

/// For as long as what is done in the background takes at least.
pub(crate) fn linger() {
    settings::read().delay_at_least(BACKGROUND_US);
}

/// Does the rest of a call, in the background if the communicator does not block. Its children come to the same.
pub(crate) fn go_on(
    comm: &Arc<Comm>,
    children: Vec<Arc<Comm>>,
    fault: Option<Action>,
    rest: impl FnOnce(&Arc<Comm>) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Code> {
    let own = Arc::clone(comm);
    let finish = move || {
        let outcome = with_fault(&own, fault, rest);
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
        linger();
        // The communicator has the error.
        let _: Result<(), Code> = finish();
    });
    Err(Code::IN_PROGRESS)
}

/// Does what is left of a call, or what a test wants instead.
pub(crate) fn with_fault(
    comm: &Arc<Comm>,
    fault: Option<Action>,
    rest: impl FnOnce(&Arc<Comm>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match fault {
        Some(Action::Async(code)) => Err(Failure(Code(code), "a test wants this fault".to_owned())),
        Some(_) => {
            if let Some(seat) = comm.seat_if_any() {
                seat.clique.wait_for_abort(comm, None);
            }
            Err(Aborted.into())
        }
        None => rest(comm),
    }
}

/// Refuses what the double does not do in a group.
pub(crate) fn outside_of_groups(function: &str) -> Result<(), Code> {
    if group::is_open() {
        return Err(text::refuse(
            Code::INVALID_USAGE,
            format!("{function}: the double does this outside of groups only"),
        ));
    }
    Ok(())
}
