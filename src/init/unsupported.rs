//! Substitutes for [`init`] and [`init_test!`](crate::init_test) on systems without sessions of processes.

/// Does nothing: on this system no process is started as a worker.
pub fn init() {}

/// Does nothing: on this system no process is started as a worker.
#[macro_export]
macro_rules! init_test {
    () => {};
}
