//! A host that ends waits until the ranks of other processes have ended their communicators: what they have not been told yet would
//! be lost with it.

#![allow(unsafe_code, reason = "a function of the C library")]

use std::ffi::c_int;
use std::sync::{Condvar, Mutex, Once};
use std::time::{Duration, Instant};

use super::link::Link;
use crate::nccl::comm;
use crate::sync::{lock, wait_for};

/// How long the process waits. A rank that has not ended its communicator then is one that hangs, or does not end it at all.
const LIMIT: Duration = Duration::from_secs(5);

/// Connections that are open.
static OPEN: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// A connection, for as long as it is open.
pub(crate) struct Open(());

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

impl Open {
    /// One more.
    pub(crate) fn new() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the function stays for as long as the process does, and does not unwind.
            // Where there is no room for it, the process does not wait.
            _ = unsafe { atexit(wait) };
        });
        *lock(&OPEN) += 1;
        Self(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        *lock(&OPEN) -= 1;
        CLOSED.notify_all();
    }
}

extern "C" fn wait() {
    // Two processes that are hosts of each other's ranks do not wait for each other.
    for comm in comm::all() {
        comm.seat_if_any().and_then(|seat| seat.clique.link()).into_iter().for_each(Link::shut_down);
    }
    let start = Instant::now();
    let mut open = lock(&OPEN);
    while *open > 0 && start.elapsed() < LIMIT {
        open = wait_for(&CLOSED, open, LIMIT.saturating_sub(start.elapsed()));
    }
}
