//! Systems without sessions of processes.

/// Does nothing: on this system no process is started as a worker.
pub fn init() {}
