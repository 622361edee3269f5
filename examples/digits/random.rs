//! Pseudorandom numbers that depend only on the seed.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub(crate) struct Random(u64);

impl Random {
    /// Starts the sequence of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number in `low..high`.
    pub(crate) fn uniform(&mut self, low: f32, high: f32) -> f32 {
        // An f32 represents integers of 24 bits exactly.
        let unit = (self.next() >> 40) as f32 / (1u32 << 24) as f32;
        low + (high - low) * unit
    }

    /// The numbers `0..n`, each once, in a random order (Fisher and Yates).
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            // The bias of the remainder is below n / 2^64.
            order.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
        order
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
