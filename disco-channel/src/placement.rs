//! How far apart the threads of this program run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

/// Round trips of one batch, and batches.
const TRIPS: u64 = 1000;
const BATCHES: usize = 15;

/// How long a cache line takes from one thread to another, one way: the median of several batches of round trips between
/// two threads that spin. None on one processor, where it would measure the scheduler.
///
/// Schedulers and hypervisors move threads between near processors, tens of nanoseconds apart, and far ones, hundreds:
/// figures of fast communication mean something beside this one only. Takes a few milliseconds.
pub fn hop() -> Option<Duration> {
    if available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    let line = AtomicU64::new(0);
    // Even numbers are this thread's to change, odd ones the other's.
    let wait_for = |value: u64| {
        let mut spins = 0u32;
        while line.load(Ordering::Acquire) != value {
            spins += 1;
            match spins % 1024 {
                // The other one may not run.
                0 => thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    };
    let trips = 0..TRIPS * BATCHES as u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            for trip in trips.clone() {
                wait_for(2 * trip + 1);
                line.store(2 * trip + 2, Ordering::Release);
            }
        });
        let mut batches = [Duration::ZERO; BATCHES];
        for (batch, time) in batches.iter_mut().enumerate() {
            let start = Instant::now();
            for trip in (0..TRIPS).map(|trip| batch as u64 * TRIPS + trip) {
                line.store(2 * trip + 1, Ordering::Release);
                wait_for(2 * trip + 2);
            }
            *time = start.elapsed();
        }
        batches.sort_unstable();
        Some(batches[BATCHES / 2] / (2 * TRIPS as u32))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_hop_takes_some_time_where_there_are_two_processors() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(super::hop().is_some_and(|hop| !hop.is_zero()), processors > 1);
    }
}
