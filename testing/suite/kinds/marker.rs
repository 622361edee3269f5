//! Files by which tests and worker functions wait for each other.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use disco::LaneSession;
use disco_conformance::waiting::wait_until;

use super::call;

/// A file that a worker creates when it enters a function.
pub(crate) struct Marker(PathBuf);

impl Marker {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("disco-kinds-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn wait(&self) {
        wait_until("the worker's entry into the function", || Path::exists(&self.0));
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

/// Makes a worker stay inside `kinds.stay` until the returned marker is dropped.
pub(crate) fn stay(session: &LaneSession, worker: i64) -> Marker {
    let marker = Marker::new();
    call(session, "kinds.stay", (worker, marker.path())).unwrap();
    marker.wait();
    marker
}

/// Makes a worker hang inside `kinds.hang`.
pub(crate) fn hang(session: &LaneSession, worker: i64) {
    let marker = Marker::new();
    call(session, "kinds.hang", (worker, marker.path())).unwrap();
    marker.wait();
}
