//! Seeds: well-formed inputs, from which the fuzzer starts again from time to time.

use std::sync::LazyLock;

/// One in this number of mutations starts again from a seed.
const RARELY: u32 = 512;

/// The seeds of a target, made at the first access.
pub struct Seeds(LazyLock<Vec<Vec<u8>>>);

impl Seeds {
    /// The seeds that `make` returns.
    pub const fn new(make: fn() -> Vec<Vec<u8>>) -> Self {
        Self(LazyLock::new(make))
    }

    /// All seeds.
    pub fn all(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// For one in 512 values of `random`, overwrites `data` with a seed that fits and returns its length.
    pub fn start_over(&self, data: &mut [u8], max_size: usize, random: u32) -> Option<usize> {
        if !random.is_multiple_of(RARELY) || self.0.is_empty() {
            return None;
        }
        let seed = &self.0[(random / RARELY) as usize % self.0.len()];
        let fits = seed.len() <= max_size.min(data.len());
        fits.then(|| data[..seed.len()].copy_from_slice(seed))?;
        Some(seed.len())
    }
}
