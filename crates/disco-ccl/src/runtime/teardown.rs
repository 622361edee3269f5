//! Teardown that may wait for the device or for peers. It runs on a separate thread, which is abandoned if the teardown
//! takes too long.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::AbortCause;

use super::Runtime;
use super::graphs::Graphs;
use crate::reaper::{self, Job};

/// How long a rank waits for a teardown.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long memory waits for the device before it is leaked.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A teardown that has started.
#[derive(Debug)]
pub(crate) struct Teardown {
    what: &'static str,
    /// None if the thread could not be started.
    end: Option<mpsc::Receiver<()>>,
}

impl Teardown {
    /// Waits for the teardown, at most [`WAIT_TIMEOUT`]. Returns whether it is over.
    pub(crate) fn wait(self) -> bool {
        let is_over = self.end.is_some_and(|end| end.recv_timeout(WAIT_TIMEOUT).is_ok());
        if !is_over {
            let what = self.what;
            tracing::warn!(what, after = ?WAIT_TIMEOUT, "a teardown has not returned; its thread is abandoned");
        }
        is_over
    }

    /// Runs `work` on a new thread, on which the device is current.
    pub(crate) fn spawn(what: &'static str, runtime: &Arc<Runtime>, work: impl FnOnce() + Send + 'static) -> Self {
        Self::spawn_with(what, runtime, work, |()| {})
    }

    /// Like [`Teardown::spawn`]; the thread then reports that the teardown is over, and runs `later`.
    pub(crate) fn spawn_with<T>(
        what: &'static str,
        runtime: &Arc<Runtime>,
        work: impl FnOnce() -> T + Send + 'static,
        later: impl FnOnce(T) + Send + 'static,
    ) -> Self {
        let (done, end) = mpsc::channel();
        let runtime = runtime.clone();
        let thread = thread::Builder::new().name("disco-ccl-end".into()).spawn(move || {
            if let Err(error) = runtime.make_current() {
                tracing::warn!(%error, what, "the device can't be made current");
            }
            let result = work();
            // The thread that started the teardown may have given up.
            _ = done.send(());
            later(result);
        });
        let thread = thread
            .inspect_err(|error| tracing::warn!(%error, what, "a teardown is skipped: its thread can't be started"));
        Self { what, end: thread.ok().map(|_| end) }
    }
}

impl Runtime {
    /// Drops `owner`, which owns memory, once the device is done with the memory: on the thread that frees memory, with
    /// the device current. Does not wait. If the streams are busy for more than 60 s, the owner is leaked.
    pub fn drop_when_unused(self: &Arc<Self>, owner: impl Send + 'static) {
        // A job that is given up drops its closure, but not the owner in it.
        let mut owner = Some(ManuallyDrop::new(owner));
        when_idle(self, "memory of the program", move || drop(owner.take().map(ManuallyDrop::into_inner)));
    }

    /// Ends the graphs of a communicator, which has ended by `cause`: destroys them on a separate thread, since the driver
    /// may block behind a launch; no thread if there are no graphs.
    pub(crate) fn destroy_graphs(self: &Arc<Self>, graphs: &Graphs, cause: &AbortCause) -> Option<Teardown> {
        let taken = graphs.take_all(cause);
        (!taken.is_empty()).then(|| Teardown::spawn("the end of graphs", self, move || drop(taken)))
    }
}

/// Runs `free` on the [reaper]'s thread, with the device current, once all streams of the runtime are
/// idle. Does not wait.
pub(crate) fn when_idle(runtime: &Arc<Runtime>, what: &str, mut free: impl FnMut() + Send + 'static) {
    let (own, mut idle_since) = (runtime.clone(), None);
    let poll = move || {
        let mut is_ready = false;
        own.driver().with_current(&mut || {
            if idle_since.is_none() && own.is_all_idle().unwrap_or(true) {
                idle_since = Some(Instant::now());
            }
            is_ready = idle_since.is_some_and(|since| own.are_peers_done(since));
        });
        is_ready
    };
    let (what, stream, own) = (what.to_owned(), Arc::as_ptr(runtime).addr(), runtime.clone());
    let free = Box::new(move || own.driver().with_current(&mut free));
    reaper::submit(Job { what, stream, limit: IDLE_TIMEOUT, is_ready: Box::new(poll), free });
}
