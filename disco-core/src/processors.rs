//! The processors of this process.

use std::sync::OnceLock;
use std::thread;

/// Number of processors that this process may use: [`thread::available_parallelism`] at the first call, because that
/// reads the files of control groups each time.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}
