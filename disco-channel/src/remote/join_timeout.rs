//! Joining a thread with a timeout.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the thread is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Joins a thread that ends within `limit`. Returns `None` for a thread that does not; it is detached.
pub(crate) fn within<T>(thread: JoinHandle<T>, limit: Duration) -> Option<thread::Result<T>> {
    let start = Instant::now();
    while !thread.is_finished() {
        if start.elapsed() > limit {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
    Some(thread.join())
}
