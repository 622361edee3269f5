//! Waiting for a future with a timeout.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Waits for `future` and returns its result. None, and the future is dropped, if it has not ended after `limit`.
pub(crate) fn block_on<T>(future: impl Future<Output = T>, limit: Duration) -> Option<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let start = Instant::now();
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(result);
        }
        thread::park_timeout(limit.checked_sub(start.elapsed())?);
    }
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

    #[test]
    fn a_wait_ends_with_its_future_or_its_limit() {
        assert_eq!(block_on(ready(3), Duration::ZERO), Some(3));
        assert_eq!(block_on(pending::<()>(), Duration::from_millis(1)), None);
    }
}
