//! A seeded pseudo-random number generator.

use std::thread;
use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator of the numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "the numbers do not end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// True in so many of a hundred calls.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Sleeps for less than `limit`, so that the next event happens at any moment.
    pub fn pause(&mut self, limit: Duration) {
        thread::sleep(Duration::from_micros(self.below(limit.as_micros() as usize) as u64));
    }

    /// An independent generator.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }
}
