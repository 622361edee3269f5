//! Waiting for a thread, but not for ever.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What a thread returned, if it has ended within `limit`; else it goes on by itself.
pub(crate) fn within<T>(thread: JoinHandle<T>, limit: Duration) -> Option<thread::Result<T>> {
    let start = Instant::now();
    while !thread.is_finished() {
        if start.elapsed() > limit {
            return None;
        }
        thread::sleep(LOOK);
    }
    Some(thread.join())
}
