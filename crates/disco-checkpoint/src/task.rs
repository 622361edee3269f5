//! Work on threads of its own, awaited on any executor.

use std::io;
use std::thread;
use std::time::Duration;

use futures_channel::oneshot;

/// Runs `work`, which may block, on a thread of its own. If the future is dropped then, the work is still completed.
///
/// # Errors
/// There is no thread, or `work` panics.
pub(crate) async fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (sender, result) = oneshot::channel();
    // Without a receiver, the result is dropped.
    thread::Builder::new().name("checkpoint".into()).spawn(move || _ = sender.send(work()))?;
    result.await.map_err(|oneshot::Canceled| io::Error::other("the thread panicked"))
}

/// Waits for `time`.
pub(crate) async fn sleep(time: Duration) {
    // Without a thread the caller just goes on at once.
    _ = unblock(move || thread::sleep(time)).await;
}
