//! Waits of tests: for a condition that another thread or process makes true, for a state of workers, and without an end.

use std::thread;
use std::time::{Duration, Instant};

use disco_core::session::LaneSession;
use disco_core::status::WorkerStatus;

/// Limit of [`wait_for`] and [`wait_until`], also on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Polls `ready` until it returns a value, and returns the value. `None` if there is none after `limit`.
pub fn poll<T>(limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let is_late = start.elapsed() > limit;
        let value = ready();
        if value.is_some() || is_late {
            return value;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Polls `ready` until it returns a value, and returns the value.
///
/// # Panics
///
/// If there is no value after 60 s. The message has `what`, which names the awaited event.
#[track_caller]
pub fn wait_for<T>(what: &str, ready: impl FnMut() -> Option<T>) -> T {
    poll(LIMIT, ready).unwrap_or_else(|| panic!("{what}: not within {LIMIT:?}"))
}

/// Polls `condition` until it is true.
///
/// # Panics
///
/// If it is false after 60 s. The message has `what`, which names the awaited event.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Waits until each of `workers` is inside the worker function `name`, as the session's status says. It is one heartbeat
/// interval old at most.
///
/// # Panics
///
/// If they are not after 60 s.
#[track_caller]
pub fn wait_until_inside(session: &LaneSession, name: &str, workers: impl IntoIterator<Item = usize>) {
    wait_for_workers(session, workers, &format!("inside `{name}`"), |worker| worker.function.as_deref() == Some(name));
}

/// Waits until each of `workers` is inside a collective, as the session's status says. It is one heartbeat interval old
/// at most.
///
/// # Panics
///
/// If they are not after 60 s.
#[track_caller]
pub fn wait_until_in_collective(session: &LaneSession, workers: impl IntoIterator<Item = usize>) {
    wait_for_workers(session, workers, "inside a collective", |worker| worker.operation.is_some());
}

#[track_caller]
fn wait_for_workers(
    session: &LaneSession,
    workers: impl IntoIterator<Item = usize>,
    what: &str,
    is_there: impl Fn(&WorkerStatus) -> bool,
) {
    let workers: Vec<usize> = workers.into_iter().collect();
    wait_until(&format!("workers {workers:?} {what}"), || {
        let status = session.status();
        workers.iter().all(|worker| status.workers.get(*worker).is_some_and(&is_there))
    });
}

/// Does not return: for a worker function that hangs, and for a program that waits to be killed.
pub fn hang() -> ! {
    loop {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_ends_with_its_value_or_its_limit() {
        let mut polls = 0;
        let third = || {
            polls += 1;
            (polls == 3).then_some(polls)
        };
        assert_eq!(poll(LIMIT, third), Some(3));
        assert_eq!(poll(Duration::ZERO, || None::<()>), None);
    }
}
