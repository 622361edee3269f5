//! Shutdown of a session: a thread closes the lanes, and all callers wait for its result.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use event_listener::Event;

use crate::error::{Error, Result};
use crate::sync;

/// Closes the lanes of a session once, for any number of callers.
#[derive(Debug, Default)]
pub(super) struct Closing {
    state: Mutex<State>,
    /// Notified once the close has ended.
    changed: Event,
}

#[derive(Debug, Default)]
struct State {
    has_begun: bool,
    /// The end of the close.
    result: Option<Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Closing {
    /// Whether a close has ended, with an error or without.
    pub(super) fn is_done(&self) -> bool {
        sync::lock(&self.state).result.is_some()
    }

    /// Runs `close`, which may block, on a separate thread, unless another caller has started a close. Returns the
    /// result of the close that ran. Dropping the future does not stop the close.
    ///
    /// # Errors
    /// The error of `close`.
    pub(super) async fn run(self: &Arc<Self>, close: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let mut close = Some(close);
        loop {
            let changed = self.changed.listen();
            if let Some(close) = close.take_if(|_| self.begin()) {
                self.start(close);
            }
            if let Some((result, thread)) = self.end() {
                // Joining does not block for long: the thread has finished its work. No thread of a session outlives
                // its shutdown.
                _ = thread.map(JoinHandle::join);
                return result;
            }
            changed.await;
        }
    }

    /// Records that the session has ended without [`Self::run`].
    pub(super) fn note_end(&self) {
        if self.begin() {
            self.set(Ok(()));
        }
    }

    fn begin(&self) -> bool {
        !std::mem::replace(&mut sync::lock(&self.state).has_begun, true)
    }

    /// The result of the close, and its thread for the first caller, once it has ended.
    fn end(&self) -> Option<(Result<()>, Option<JoinHandle<()>>)> {
        let mut state = sync::lock(&self.state);
        let result = state.result.clone()?;
        Some((result, state.thread.take()))
    }

    fn start(self: &Arc<Self>, close: impl FnOnce() -> Result<()> + Send + 'static) {
        let close = Arc::new(Mutex::new(Some(close)));
        let on_thread = {
            let (closing, close) = (self.clone(), close.clone());
            move || closing.finish(&close)
        };
        match thread::Builder::new().name("disco-close".to_owned()).spawn(on_thread) {
            Ok(thread) => sync::lock(&self.state).thread = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "the system refuses a thread: the caller closes the session itself, and blocks");
                self.finish(&close);
            }
        }
    }

    fn finish(&self, close: &Mutex<Option<impl FnOnce() -> Result<()>>>) {
        let close = sync::lock(close).take();
        let result = panic::catch_unwind(AssertUnwindSafe(|| close.map_or(Ok(()), |close| close())));
        self.set(result.unwrap_or_else(|_| Err(Error::state("the shutdown panicked"))));
    }

    fn set(&self, result: Result<()>) {
        sync::lock(&self.state).result = Some(result);
        self.changed.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures_lite::future::poll_once;
    use pollster::block_on;

    use super::*;

    #[test]
    fn all_callers_get_the_result_of_the_first_close_and_none_blocks() {
        let closing = Arc::new(Closing::default());
        let (open, gate) = mpsc::channel::<()>();
        block_on(async {
            let mut first = pin!(closing.run(move || {
                _ = gate.recv();
                Err(Error::NoCommunicator)
            }));
            let mut second = pin!(closing.run(|| Ok(())));
            assert!(poll_once(first.as_mut()).await.is_none());
            assert!(poll_once(second.as_mut()).await.is_none());
            open.send(()).unwrap();
            assert!(first.await.is_err() && second.await.is_err());
            assert!(closing.is_done());
        });
    }

    #[test]
    fn a_close_continues_when_the_future_that_started_it_is_dropped() {
        let closing = Arc::new(Closing::default());
        let (open, gate) = mpsc::channel::<()>();
        block_on(async {
            let close = move || {
                _ = gate.recv();
                Ok(())
            };
            assert!(poll_once(pin!(closing.run(close))).await.is_none());
            assert!(!closing.is_done());
            open.send(()).unwrap();
            closing.run(|| Err(Error::NoCommunicator)).await.unwrap();
        });
    }

    #[test]
    fn a_close_that_panics_returns_an_error_to_all_callers() {
        let closing = Arc::new(Closing::default());
        block_on(async {
            assert!(closing.run(|| panic!("expected by this test")).await.is_err());
            assert!(closing.run(|| Ok(())).await.is_err());
        });
    }
}
