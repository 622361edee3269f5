//! The end of a session: one caller closes the lanes, and the other callers wait for its result.

use std::future::Future;
use std::sync::{Mutex, MutexGuard};

use event_listener::Event;

use crate::error::Result;
use crate::sync;

/// Closes the lanes of a session once, however many callers ask for it.
#[derive(Debug, Default)]
pub(super) struct Closing {
    state: Mutex<State>,
    /// Follows each change of `state` to `Open` and `Done`.
    changed: Event,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Open,
    Running,
    Done(Result<()>),
}

impl Closing {
    /// Whether a close has ended, with an error or without.
    pub(super) fn is_done(&self) -> bool {
        matches!(*self.lock(), State::Done(_))
    }

    /// Returns the result of the first close that ends. Runs `close` unless another caller runs one; the next caller takes over
    /// if the future of that caller is dropped.
    pub(super) async fn run<F: Future<Output = Result<()>>>(&self, close: impl FnOnce() -> F) -> Result<()> {
        loop {
            let changed = self.changed.listen();
            if self.begin() {
                break;
            }
            if let State::Done(result) = self.lock().clone() {
                return result;
            }
            changed.await;
        }
        let mut running = Running { closing: self, then: State::Open };
        let result = close().await;
        running.then = State::Done(result.clone());
        result
    }

    fn begin(&self) -> bool {
        let mut state = self.lock();
        let is_open = matches!(*state, State::Open);
        if is_open {
            *state = State::Running;
        }
        is_open
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

/// The caller that closes. Dropping it sets the state to `then`.
struct Running<'a> {
    closing: &'a Closing,
    then: State,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.closing.lock() = self.then.clone();
        self.closing.changed.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_lite::future::{self, poll_once};

    use super::*;
    use crate::error::Error;

    #[test]
    fn all_callers_get_the_result_of_the_first() {
        let closing = Closing::default();
        future::block_on(async {
            let gate = Event::new();
            let opened = gate.listen();
            let mut first = pin!(closing.run(|| async {
                opened.await;
                Err(Error::NoCommunicator)
            }));
            let mut second = pin!(closing.run(|| async { Ok(()) }));
            assert!(poll_once(first.as_mut()).await.is_none());
            assert!(poll_once(second.as_mut()).await.is_none());
            gate.notify(1);
            assert!(first.await.is_err() && second.await.is_err());
            assert!(closing.is_done());
        });
    }

    #[test]
    fn a_caller_takes_over_from_one_whose_future_is_dropped() {
        let closing = Closing::default();
        future::block_on(async {
            let mut second = pin!(closing.run(|| async { Ok(()) }));
            {
                let mut first = pin!(closing.run(future::pending));
                assert!(poll_once(first.as_mut()).await.is_none());
                assert!(poll_once(second.as_mut()).await.is_none());
            }
            assert!(!closing.is_done());
            second.await.unwrap();
        });
    }
}
