//! Systems without sessions of processes.

/// Does nothing: on this system no process is started as a worker.
pub fn init() {}

/// Does nothing: on this system no process is started as a worker.
#[macro_export]
macro_rules! init_test {
    () => {};
}
