//! The end of a communicator, which no library promises to come to: it happens on a thread of its own, which is left behind if it
//! takes too long.

#![allow(unsafe_code)]

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::Code;
use crate::handle::Owned;
use crate::library::Library;
use crate::memory::Registration;
use crate::runtime::Runtime;

/// How long a rank waits for it.
const LIMIT: Duration = Duration::from_secs(5);
/// How long memory may be waited for, by nobody.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it looks.
const LOOK: Duration = Duration::from_micros(50);

/// Gives up what is under way; does not wait.
pub(crate) fn abort(library: &'static Library, runtime: &Arc<dyn Runtime>, comm: Owned) {
    drop(spawn("ncclCommAbort", runtime, move || comm_abort(library, comm)));
}

/// The same, after which nothing of this communicator's touches memory, as far as that is known within the limit.
pub(crate) fn abort_and_wait(library: &'static Library, runtime: &Arc<dyn Runtime>, comm: Owned) {
    wait("ncclCommAbort", spawn("ncclCommAbort", runtime, move || comm_abort(library, comm)));
}

/// Leaves in good order: when all is done, or with an abort where that takes too long.
pub(crate) fn leave(
    library: &'static Library,
    runtime: &Arc<dyn Runtime>,
    comm: Owned,
    registrations: Vec<Registration>,
) {
    let own = runtime.clone();
    let work = move || match finalize(library, &*own, &comm, &registrations) {
        true => {
            let destroy = library.table.comm_destroy;
            // SAFETY: nobody else has the communicator, and nothing is under way.
            let code = unsafe { destroy(comm.0) };
            report(library, "ncclCommDestroy", code);
        }
        false => comm_abort(library, comm),
    };
    wait("ncclCommDestroy", spawn("ncclCommDestroy", runtime, work));
}

/// Whether all that was under way is done, with no error.
fn finalize(library: &Library, runtime: &dyn Runtime, comm: &Owned, registrations: &[Registration]) -> bool {
    let end = Instant::now() + LIMIT / 2;
    let until = |is_done: &dyn Fn() -> Option<bool>| {
        loop {
            match is_done() {
                Some(false) if Instant::now() < end => thread::sleep(LOOK),
                found => return found == Some(true),
            }
        }
    };
    let settled = || {
        let mut state = Code::SUCCESS;
        // SAFETY: nobody else has the communicator.
        let code = unsafe { (library.table.comm_get_async_error)(comm.0, &mut state) };
        match (code, state) {
            (Code::SUCCESS, Code::SUCCESS) => Some(true),
            (Code::SUCCESS, Code::IN_PROGRESS) => Some(false),
            _ => None,
        }
    };
    if !until(&|| runtime.is_idle().ok()) || !until(&settled) {
        return false;
    }
    registrations.iter().for_each(|registration| registration.end(library, comm));
    let Some(comm_finalize) = library.table.comm_finalize else { return true };
    // SAFETY: as above.
    let code = unsafe { comm_finalize(comm.0) };
    matches!(code, Code::SUCCESS | Code::IN_PROGRESS) && until(&settled)
}

fn comm_abort(library: &Library, comm: Owned) {
    // SAFETY: nobody else has the communicator.
    let code = unsafe { (library.table.comm_abort)(comm.0) };
    report(library, "ncclCommAbort", code);
}

pub(crate) fn report(library: &Library, function: &'static str, code: Code) {
    if let Err(error) = library.check_launched(function, code) {
        tracing::warn!(%error, "a communicator is left behind");
    }
}

/// Does what waits for the device when that has nothing to do; does not wait.
pub(crate) fn when_idle(runtime: &Arc<dyn Runtime>, what: &'static str, work: impl FnOnce() + Send + 'static) {
    let own = runtime.clone();
    let patient = move || {
        let end = Instant::now() + PATIENCE;
        while matches!(own.is_idle(), Ok(false)) {
            if Instant::now() > end {
                tracing::warn!(what, after = ?PATIENCE, "the stream does not end; memory is left behind");
                return;
            }
            thread::sleep(LOOK);
        }
        work();
    };
    drop(spawn(what, runtime, patient));
}

/// Tells when the work is done.
fn spawn(
    what: &'static str,
    runtime: &Arc<dyn Runtime>,
    work: impl FnOnce() + Send + 'static,
) -> Option<mpsc::Receiver<()>> {
    let (done, end) = mpsc::channel();
    let runtime = runtime.clone();
    let thread = thread::Builder::new().name("disco-ccl-end".into()).spawn(move || {
        if let Err(error) = runtime.enter() {
            tracing::warn!(%error, what, "the device can't be made current");
        }
        work();
        // Whoever started this may wait no more.
        _ = done.send(());
    });
    thread
        .inspect_err(|error| tracing::warn!(%error, what, "no thread for it; a communicator is left behind"))
        .ok()
        .map(|_| end)
}

fn wait(what: &'static str, end: Option<mpsc::Receiver<()>>) {
    if end.is_some_and(|end| end.recv_timeout(LIMIT).is_err()) {
        tracing::warn!(what, after = ?LIMIT, "has not returned; it is left to itself");
    }
}
