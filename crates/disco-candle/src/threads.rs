//! Threads of candle's kernels.

use std::cell::RefCell;

use rayon::{ThreadPool, ThreadPoolBuilder};

use disco_core::{Error, Result};

thread_local! {
    /// The pool of this thread, which is its first member.
    static POOL: RefCell<Option<ThreadPool>> = const { RefCell::new(None) };
}

/// Gives this worker's thread a rayon pool of `threads` threads, itself among them. With one thread, candle's parallel
/// loops run where they are called.
///
/// Otherwise the workers of one process share rayon's global pool, and each loop wakes another thread. Call it once, in
/// a worker function, before the first operation of candle. Candle's quantised products have threads of their own:
/// start the program with `CANDLE_NUM_THREADS=1` if its workers are threads.
///
/// # Errors
/// The thread is in a pool already, or the threads can't be started.
pub fn compute_threads(threads: usize) -> Result<()> {
    let pool = ThreadPoolBuilder::new().num_threads(threads.max(1)).use_current_thread().build();
    let pool = pool.map_err(|error| Error::invalid(format!("compute_threads: {error}")))?;
    POOL.set(Some(pool));
    Ok(())
}
