//! Well-formed bytes among the hostile ones.

use std::sync::LazyLock;

/// One mutation in so many starts over from a seed.
const RARELY: u32 = 512;

/// The seeds of a target, made when they are first asked for.
pub struct Seeds(LazyLock<Vec<Vec<u8>>>);

impl Seeds {
    /// Those that `make` makes.
    pub const fn new(make: fn() -> Vec<Vec<u8>>) -> Self {
        Self(LazyLock::new(make))
    }

    /// All of them.
    pub fn all(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// Now and then puts a seed in place of `data`, and returns its length. `random` decides.
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
