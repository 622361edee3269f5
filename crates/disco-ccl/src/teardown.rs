//! The teardown of a communicator. The calls of the library may block, so they run on separate threads.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::{Code, Comm};
use crate::library::Library;
use crate::owned::OwnedComm;
use crate::registration::Registration;
use crate::runtime::{Hold, Runtime, Teardown};
use crate::siblings::Siblings;

/// How long the teardown thread waits for kernels before it leaks memory.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(60);
/// Sleep between two polls.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A communicator to abort, with the memory that its kernels may still touch.
pub(crate) struct AbortedComm {
    comm: OwnedComm,
    memory: RetainedMemory,
}

/// Memory that is kept until no kernel of the communicator uses memory any more.
struct RetainedMemory {
    kept: Vec<Registration>,
    siblings: Option<Arc<Siblings>>,
    _hold: Hold,
}

/// An abort between its two phases: see [`crate::blocking`].
struct TwoPhaseAbort(&'static Library);

/// A communicator's address.
struct Pointer(Comm);

// SAFETY: the library accepts a communicator on any thread.
unsafe impl Send for Pointer {}

/// The result of `finalize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finalized {
    /// All work is complete, and the communicator can be destroyed.
    InOrder,
    /// The communicator is still to be aborted.
    Not,
    /// A two-phase abort has freed the communicator.
    ByAbort,
}

impl Teardown {
    /// Aborts a communicator. The teardown is over when `ncclCommAbort` has returned.
    pub(crate) fn abort(library: &'static Library, runtime: &Arc<Runtime>, aborted: AbortedComm) -> Self {
        let abort = move || {
            let AbortedComm { comm, memory } = aborted;
            let memory = memory.with_siblings(&comm);
            comm_abort(library, comm);
            memory
        };
        Self::spawn_with("ncclCommAbort", runtime, abort, RetainedMemory::release_when_unused)
    }

    /// Aborts a communicator while its rank is in a call: the first phase begins at once, the second when the rank has
    /// sent `handed_over`.
    pub(crate) fn interrupt(
        library: &'static Library,
        runtime: &Arc<Runtime>,
        comm: Comm,
        handed_over: mpsc::Receiver<Option<AbortedComm>>,
    ) -> Self {
        let pointer = Pointer(comm);
        let abort = move || {
            let abort = TwoPhaseAbort::begin(library, &pointer);
            // The rank sends this after its call. If the call never returns, the communicator leaks.
            let handed_over = handed_over.recv().ok()?;
            let parts = handed_over.map(|AbortedComm { comm, memory }| (memory.with_siblings(&comm), comm));
            abort.end();
            // The second phase has freed the communicator.
            parts.map(|(memory, _comm)| memory)
        };
        Self::spawn_with("ncclCommAbort", runtime, abort, |memory| {
            if let Some(memory) = memory {
                memory.release_when_unused();
            }
        })
    }

    /// Destroys a communicator after its work is complete; aborts it if that takes longer than `timeout`.
    pub(crate) fn finalize_and_destroy(
        library: &'static Library,
        runtime: &Arc<Runtime>,
        comm: OwnedComm,
        registrations: Vec<Registration>,
        timeout: Duration,
    ) -> Self {
        let own = runtime.clone();
        Self::spawn("ncclCommDestroy", runtime, move || {
            let finalized = finalize(library, &own, &comm, &registrations, timeout);
            if finalized != Finalized::InOrder {
                let why = "the work of a dropped communicator has failed or does not end: the communicator is aborted";
                tracing::warn!(?timeout, why);
            }
            match finalized {
                Finalized::InOrder => comm_destroy(library, comm),
                Finalized::Not => comm_abort(library, comm),
                Finalized::ByAbort => drop(comm),
            }
        })
    }
}

impl AbortedComm {
    /// The caller takes `hold` before the communicator's graphs give memory back.
    pub(crate) fn new(comm: OwnedComm, kept: Vec<Registration>, hold: Hold) -> Self {
        Self { comm, memory: RetainedMemory { kept, siblings: None, _hold: hold } }
    }
}

impl RetainedMemory {
    fn with_siblings(self, comm: &OwnedComm) -> Self {
        Self { siblings: comm.siblings(), ..self }
    }

    /// Waits until no kernel of the communicator uses memory any more, and releases the memory.
    fn release_when_unused(self) {
        if !self.siblings.is_none_or(|siblings| siblings.wait(TEARDOWN_TIMEOUT)) {
            let why = "an aborted operation has not ended on all ranks: registered memory is leaked";
            tracing::warn!(after = ?TEARDOWN_TIMEOUT, why);
            std::mem::forget(self.kept);
        }
    }
}

impl TwoPhaseAbort {
    /// Sets the abort flags, which end calls and kernels of the communicator. [`TwoPhaseAbort::end`] frees the
    /// communicator.
    fn begin(library: &'static Library, comm: &Pointer) -> Self {
        // SAFETY: a group belongs to the calling thread, which ends this one in `end`.
        let code = unsafe { (library.table.group_start)() };
        library.report("ncclGroupStart", code);
        // SAFETY: inside a group, `ncclCommAbort` frees the communicator only at the end of the group.
        let code = unsafe { (library.table.comm_abort)(comm.0) };
        library.report("ncclCommAbort", code);
        Self(library)
    }

    /// Waits for the communicator's kernels, and frees the communicator. No thread is in a call on the communicator.
    fn end(self) {
        // SAFETY: `begin` has started a group on this thread.
        let code = unsafe { (self.0.table.group_end)() };
        self.0.report("ncclGroupEnd", code);
    }
}

/// Waits until all work is complete, and finalizes the communicator.
fn finalize(
    library: &'static Library,
    runtime: &Arc<Runtime>,
    comm: &OwnedComm,
    registrations: &[Registration],
    timeout: Duration,
) -> Finalized {
    let start = Instant::now();
    let until = |is_done: &dyn Fn() -> Option<bool>| {
        loop {
            match is_done() {
                Some(false) if start.elapsed() < timeout => thread::sleep(POLL_INTERVAL),
                found => return found == Some(true),
            }
        }
    };
    let settled = || {
        let mut state = Code::SUCCESS;
        // SAFETY: this thread is the only owner of the communicator, and `state` is a valid output.
        let code = unsafe { (library.table.comm_get_async_error)(comm.0, &mut state) };
        match (code, state) {
            (Code::SUCCESS, Code::SUCCESS) => Some(true),
            (Code::SUCCESS, Code::IN_PROGRESS) => Some(false),
            _ => None,
        }
    };
    if !until(&|| runtime.is_idle().ok()) || !until(&settled) {
        return Finalized::Not;
    }
    registrations.iter().for_each(|registration| registration.deregister(library, comm));
    let Some(comm_finalize) = library.table.comm_finalize else { return Finalized::InOrder };
    // On a blocking communicator the call may wait for other ranks.
    let (pointer, (done, end)) = (Pointer(comm.0), mpsc::channel());
    let call = move || {
        let pointer = pointer;
        // SAFETY: this is the only owner of the communicator, which stays until the call has returned.
        _ = done.send(unsafe { comm_finalize(pointer.0) });
    };
    drop(Teardown::spawn("ncclCommFinalize", runtime, call));
    match end.recv_timeout(timeout.saturating_sub(start.elapsed())) {
        Ok(Code::SUCCESS | Code::IN_PROGRESS) if until(&settled) => Finalized::InOrder,
        Err(RecvTimeoutError::Timeout) => {
            let abort = TwoPhaseAbort::begin(library, &Pointer(comm.0));
            _ = end.recv();
            abort.end();
            Finalized::ByAbort
        }
        _ => Finalized::Not,
    }
}

fn comm_destroy(library: &Library, comm: OwnedComm) {
    // SAFETY: `comm` is the only owner of the communicator, whose work is complete.
    let code = unsafe { (library.table.comm_destroy)(comm.0) };
    library.report("ncclCommDestroy", code);
}

fn comm_abort(library: &Library, comm: OwnedComm) {
    // SAFETY: `comm` is the only owner of the communicator.
    let code = unsafe { (library.table.comm_abort)(comm.0) };
    library.report("ncclCommAbort", code);
}
