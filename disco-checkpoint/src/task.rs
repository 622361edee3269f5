//! Work on threads of its own, awaited on any executor.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use disco_core::sync;

/// Runs `work`, which may block, on a thread of its own. If the future is dropped, the work is still completed.
///
/// # Errors
/// There is no thread, or `work` panics.
pub(crate) fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Blocking<T> {
    let state = Arc::new(Mutex::new(State { result: None, waker: None }));
    let end = End(state.clone());
    let run = move || {
        let result = work();
        sync::lock(&end.0).result = Some(Ok(result));
        drop(end);
    };
    if let Err(error) = thread::Builder::new().name("checkpoint".into()).spawn(run) {
        sync::lock(&state).result = Some(Err(error));
    }
    Blocking(state)
}

/// Waits for `time`.
pub(crate) async fn sleep(time: Duration) {
    // Without a thread the caller just goes on at once.
    _ = unblock(move || thread::sleep(time)).await;
}

/// The result of [`unblock`].
pub(crate) struct Blocking<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

/// Wakes the waiting task when it is dropped, also by a panic.
struct End<T>(Arc<Mutex<State<T>>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = sync::lock(&self.0);
            state.result.get_or_insert_with(|| Err(io::Error::other("the thread panicked")));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Blocking<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = sync::lock(&self.0);
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
