//! The end of a communicator, which no library promises to come to: it happens on a thread of its own, which is left behind if it
//! takes too long.

#![allow(unsafe_code)]

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::Code;
use crate::blocking::Blocking;
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

/// The end of something, under way.
#[derive(Debug)]
pub(crate) struct Ending {
    what: &'static str,
    /// None where there was no thread for it.
    end: Option<mpsc::Receiver<()>>,
}

impl Ending {
    /// Gives up what a communicator has under way. It is over when the library's call has returned; what is kept stays until nothing
    /// of the communicator touches memory any more, and the device's memory is not given out again before.
    pub(crate) fn abort(
        library: &'static Library,
        runtime: &Arc<Runtime>,
        comm: Owned,
        blocking: Option<Arc<Blocking>>,
        kept: Vec<Registration>,
    ) -> Self {
        let (siblings, hold) = (comm.siblings(), runtime.hold());
        let abort = move || {
            if let Some(blocking) = blocking {
                blocking.end();
            }
            comm_abort(library, comm);
        };
        Self::spawn_with("ncclCommAbort", runtime, abort, move || {
            match siblings.is_none_or(|siblings| siblings.wait(PATIENCE)) {
                true => drop(kept),
                false => std::mem::forget(kept),
            }
            drop(hold);
        })
    }

    /// Leaves in good order: when all is done, or with an abort where that takes longer than `patience`.
    pub(crate) fn leave(
        library: &'static Library,
        runtime: &Arc<Runtime>,
        comm: Owned,
        registrations: Vec<Registration>,
        patience: Duration,
    ) -> Self {
        let own = runtime.clone();
        Self::spawn("ncclCommDestroy", runtime, move || {
            match finalize(library, &own, &comm, &registrations, patience) {
                true => comm_destroy(library, comm),
                false => {
                    tracing::warn!(
                        ?patience,
                        "a communicator was dropped with work that has failed or does not end: it is aborted"
                    );
                    comm_abort(library, comm);
                }
            }
        })
    }

    /// Leaves one that was never used.
    pub(crate) fn destroy(library: &'static Library, runtime: &Arc<Runtime>, comm: Owned) -> Self {
        Self::spawn("ncclCommDestroy", runtime, move || comm_destroy(library, comm))
    }

    /// Waits for it, if that does not take long. Whether it is over.
    pub(crate) fn wait(self) -> bool {
        let is_over = self.end.is_some_and(|end| end.recv_timeout(LIMIT).is_ok());
        if !is_over {
            tracing::warn!(what = self.what, after = ?LIMIT, "has not returned; it is left to itself");
        }
        is_over
    }

    /// Does it on a thread of its own, on which the device is current.
    pub(crate) fn spawn(what: &'static str, runtime: &Arc<Runtime>, work: impl FnOnce() + Send + 'static) -> Self {
        Self::spawn_with(what, runtime, work, || {})
    }

    /// As [`Ending::spawn`], and does `later` what nobody waits for.
    fn spawn_with(
        what: &'static str,
        runtime: &Arc<Runtime>,
        work: impl FnOnce() + Send + 'static,
        later: impl FnOnce() + Send + 'static,
    ) -> Self {
        let (done, end) = mpsc::channel();
        let runtime = runtime.clone();
        let thread = thread::Builder::new().name("disco-ccl-end".into()).spawn(move || {
            if let Err(error) = runtime.enter() {
                tracing::warn!(%error, what, "the device can't be made current");
            }
            work();
            // Whoever started this may wait no more.
            _ = done.send(());
            later();
        });
        let thread = thread.inspect_err(|error| tracing::warn!(%error, what, "no thread for it; it is left behind"));
        Self { what, end: thread.ok().map(|_| end) }
    }
}

/// Whether all that was under way is done, with no error.
fn finalize(
    library: &Library,
    runtime: &Runtime,
    comm: &Owned,
    registrations: &[Registration],
    patience: Duration,
) -> bool {
    let start = Instant::now();
    let until = |is_done: &dyn Fn() -> Option<bool>| {
        loop {
            match is_done() {
                Some(false) if start.elapsed() < patience => thread::sleep(LOOK),
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

fn comm_destroy(library: &Library, comm: Owned) {
    // SAFETY: nobody else has the communicator, and nothing is under way.
    let code = unsafe { (library.table.comm_destroy)(comm.0) };
    report(library, "ncclCommDestroy", code);
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
pub(crate) fn when_idle(runtime: &Arc<Runtime>, what: &'static str, work: impl FnOnce() + Send + 'static) {
    let own = runtime.clone();
    let patient = move || match own.wait_all_idle(PATIENCE) {
        true => {
            own.wait_for_peers();
            work();
        }
        false => tracing::warn!(what, after = ?PATIENCE, "a stream does not end; memory is left behind"),
    };
    drop(Ending::spawn(what, runtime, patient));
}
