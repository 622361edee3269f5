//! Waiting for a future with a timeout, also inside another future.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Interval at which [`block_on`] polls a future that does not wake it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for `future` and returns its result. None, and the future is dropped, if it has not ended after `limit`.
pub(crate) fn block_on<T>(future: impl Future<Output = T>, limit: Duration) -> Option<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let start = Instant::now();
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(result);
        }
        thread::park_timeout(limit.checked_sub(start.elapsed())?.min(POLL_INTERVAL));
    }
}

/// The result of `future`, or None if it has not ended `limit` after the first poll. Only [`block_on`] runs such a
/// future, as it polls at intervals.
pub(crate) async fn within<T>(future: impl Future<Output = T>, limit: Duration) -> Option<T> {
    let mut future = pin!(future);
    let start = Instant::now();
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending if start.elapsed() >= limit => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_ends_with_its_future_or_its_limit() {
        assert_eq!(block_on(ready(3), Duration::ZERO), Some(3));
        assert_eq!(block_on(pending::<()>(), Duration::from_millis(1)), None);
    }

    #[test]
    fn a_limit_inside_a_future_ends_that_part_only() {
        let outer = async { (within(pending::<()>(), Duration::from_millis(1)).await, within(ready(3), LONG).await) };
        assert_eq!(block_on(outer, LONG), Some((None, Some(3))));
    }
}
