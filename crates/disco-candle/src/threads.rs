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
/// Otherwise the workers of one process share rayon's global pool, and each loop wakes another thread. Call it in a worker
/// function, before the first operation of candle. A later call with the same number does nothing, so that a function
/// that has failed can be called again. Candle's quantised products have threads of their own:
/// start the program with `CANDLE_NUM_THREADS=1` if its workers are threads.
///
/// # Errors
/// The thread is in another pool already, or the threads can't be started.
pub fn compute_threads(threads: usize) -> Result<()> {
    let threads = threads.max(1);
    if POOL.with_borrow(|pool| pool.as_ref().is_some_and(|pool| pool.current_num_threads() == threads)) {
        return Ok(());
    }
    let pool = ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build();
    let pool = pool.map_err(|error| Error::invalid(format!("compute_threads: {error}")))?;
    POOL.set(Some(pool));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::compute_threads;

    #[test]
    fn a_second_call_with_the_same_number_does_nothing_and_one_with_another_number_fails() {
        let called = || {
            compute_threads(2).unwrap();
            compute_threads(2).unwrap();
            assert_eq!(rayon::current_num_threads(), 2);
            compute_threads(1).unwrap_err();
        };
        thread::spawn(called).join().unwrap();
    }
}
