//! What the fuzz targets share: how a target is made of a check and seeds, and values that seeds are made of.
//!
//! A target is a file in `fuzz_targets/` with
//!
//! ```text
//! fn check(bytes: &[u8]) -> Result<(), E>   takes hostile bytes; an error refuses them, a panic is a finding
//! fn seeds() -> Vec<Vec<u8>>                bytes that the check takes
//! disco_fuzz::target!(check, seeds);
//! ```
//!
//! a `[[bin]]` in `Cargo.toml`, and a row in `xtask/src/fuzzing.rs`, which tells how all of them are run.

mod seeding;
mod values;

#[doc(hidden)]
pub use libfuzzer_sys;
pub use seeding::Seeds;
pub use values::{failure, values};

/// Makes a fuzz target of `check` and `seeds`. Seeds are made by code, so that they are always of the present format: each is
/// checked at the start, and one mutation of many starts over from one.
#[macro_export]
macro_rules! target {
    ($check:path, $seeds:path) => {
        static SEEDS: $crate::Seeds = $crate::Seeds::new($seeds);

        $crate::libfuzzer_sys::fuzz_target!(
            init: {
                for seed in SEEDS.all() {
                    $check(seed).expect("a seed is well-formed");
                }
            },
            |bytes: &[u8]| {
                // Bytes may be refused.
                _ = $check(bytes);
            }
        );

        $crate::libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            SEEDS.start_over(data, max_size, seed).unwrap_or_else(|| {
                $crate::libfuzzer_sys::fuzzer_mutate(data, size, max_size)
            })
        });
    };
}
