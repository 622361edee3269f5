//! The latency between the processors on which this program's threads run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::processors;

/// Round trips of one batch.
const TRIPS_PER_BATCH: u64 = 1000;
/// Measurements, of which the median counts.
const BATCHES: usize = 15;

/// Measures the one-way latency of a cache line between two spinning threads: the median of several batches of round
/// trips. Returns `None` on a machine with one processor, where the result would be that of the scheduler.
///
/// Schedulers and hypervisors move threads between processors that are tens or hundreds of nanoseconds apart, so
/// compare measurements of fast communication only beside this value. The measurement takes a few milliseconds.
pub fn cache_line_latency() -> Option<Duration> {
    if processors() < 2 {
        return None;
    }
    let line = AtomicU64::new(0);
    // This thread stores odd numbers, the spawned one even numbers.
    let wait_for = |value: u64| {
        let mut spins = 0u32;
        while line.load(Ordering::Acquire) != value {
            spins += 1;
            match spins % 1024 {
                // The other thread may wait for this processor.
                0 => thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    };
    let trips = 0..TRIPS_PER_BATCH * BATCHES as u64;
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
            for trip in (0..TRIPS_PER_BATCH).map(|trip| batch as u64 * TRIPS_PER_BATCH + trip) {
                line.store(2 * trip + 1, Ordering::Release);
                wait_for(2 * trip + 2);
            }
            *time = start.elapsed();
        }
        batches.sort_unstable();
        Some(batches[BATCHES / 2] / (2 * TRIPS_PER_BATCH as u32))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn cache_line_latency_is_positive_on_two_or_more_processors() {
        let is_measured = super::cache_line_latency().is_some_and(|latency| !latency.is_zero());
        assert_eq!(is_measured, disco_core::processors() > 1);
    }
}
