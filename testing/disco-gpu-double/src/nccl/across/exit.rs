//! The exit of a host process. It waits until the ranks of other processes have ended their communicators, so that they
//! receive all replies.

#![allow(unsafe_code, reason = "a function of the C library")]

use std::ffi::c_int;
use std::sync::{Condvar, Mutex, Once};
use std::time::{Duration, Instant};

use super::link::Link;
use crate::nccl::comm;
use crate::sync::{lock, wait_for};

/// Limit of the wait at exit. A rank that takes longer hangs or never ends its communicator.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of open connections.
static OPEN_CONNECTIONS: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// Counts a connection while it is open.
pub(crate) struct OpenConnection(());

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

impl OpenConnection {
    /// Counts a new connection.
    pub(crate) fn new() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the function stays loaded until exit and does not unwind.
            // If the registration fails, the process does not wait at exit.
            _ = unsafe { atexit(wait_for_connections) };
        });
        *lock(&OPEN_CONNECTIONS) += 1;
        Self(())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        *lock(&OPEN_CONNECTIONS) -= 1;
        CLOSED.notify_all();
    }
}

extern "C" fn wait_for_connections() {
    // Two processes that host each other's ranks would otherwise wait for each other.
    for comm in comm::all() {
        comm.membership_if_any().and_then(|membership| membership.clique.link()).into_iter().for_each(Link::shut_down);
    }
    let start = Instant::now();
    let mut open = lock(&OPEN_CONNECTIONS);
    while *open > 0 && start.elapsed() < EXIT_TIMEOUT {
        open = wait_for(&CLOSED, open, EXIT_TIMEOUT.saturating_sub(start.elapsed()));
    }
}
