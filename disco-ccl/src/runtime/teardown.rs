//! Teardown that may wait for the device or for peers. It runs on a thread of its own, which is left behind if the teardown
//! takes too long.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Runtime;

/// How long a rank waits for a teardown.
const WAIT_LIMIT: Duration = Duration::from_secs(5);
/// How long the thread of a teardown waits for the device.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// A teardown that has started.
#[derive(Debug)]
pub(crate) struct Teardown {
    what: &'static str,
    /// None where there was no thread for it.
    end: Option<mpsc::Receiver<()>>,
}

impl Teardown {
    /// Waits for the teardown, at most [`WAIT_LIMIT`]. Returns whether it is over.
    pub(crate) fn wait(self) -> bool {
        let is_over = self.end.is_some_and(|end| end.recv_timeout(WAIT_LIMIT).is_ok());
        if !is_over {
            tracing::warn!(what = self.what, after = ?WAIT_LIMIT, "has not returned; it is left to itself");
        }
        is_over
    }

    /// Runs `work` on a thread of its own, on which the device is current.
    pub(crate) fn spawn(what: &'static str, runtime: &Arc<Runtime>, work: impl FnOnce() + Send + 'static) -> Self {
        Self::spawn_with(what, runtime, work, |()| {})
    }

    /// As [`Teardown::spawn`], and runs `later` after it has reported that it is over.
    pub(crate) fn spawn_with<T>(
        what: &'static str,
        runtime: &Arc<Runtime>,
        work: impl FnOnce() -> T + Send + 'static,
        later: impl FnOnce(T) + Send + 'static,
    ) -> Self {
        let (done, end) = mpsc::channel();
        let runtime = runtime.clone();
        let thread = thread::Builder::new().name("disco-ccl-end".into()).spawn(move || {
            if let Err(error) = runtime.enter() {
                tracing::warn!(%error, what, "the device can't be made current");
            }
            let result = work();
            // Whoever started this may wait no more.
            _ = done.send(());
            later(result);
        });
        let thread = thread.inspect_err(|error| tracing::warn!(%error, what, "no thread for it; it is left behind"));
        Self { what, end: thread.ok().map(|_| end) }
    }
}

/// Runs `work` on a thread of its own once the device has nothing to do. Does not wait.
pub(crate) fn when_idle(runtime: &Arc<Runtime>, what: &'static str, work: impl FnOnce() + Send + 'static) {
    let own = runtime.clone();
    let patient = move || match own.wait_all_idle(IDLE_LIMIT) {
        true => {
            own.wait_for_peers();
            work();
        }
        false => tracing::warn!(what, after = ?IDLE_LIMIT, "a stream does not end; memory is left behind"),
    };
    drop(Teardown::spawn(what, runtime, patient));
}
