//! Shared code of the fuzz targets: the macro that makes a target from a check and seeds, and values for seeds.
//!
//! A target consists of a `[[bin]]` in `Cargo.toml`, a row in `xtask/src/fuzzing.rs`, and a file in `fuzz_targets/`
//! with
//!
//! ```text
//! fn check(bytes: &[u8]) -> Result<(), E>   gets arbitrary bytes; an error refuses them, a panic is a bug
//! fn seeds() -> Vec<Vec<u8>>                bytes that the check accepts
//! disco_fuzz::target!(check, seeds);
//! ```
//!
//! `xtask/src/fuzzing.rs` documents how the targets are run.

mod seeding;
mod values;

#[doc(hidden)]
pub use libfuzzer_sys;
pub use seeding::Seeds;
pub use values::{failure, values};

/// Makes a fuzz target from `check` and `seeds`. Code makes the seeds, so that they always have the current format.
/// Each seed is checked at the start, and one in 512 mutations starts again from a seed.
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
                // The check may refuse the bytes; only a panic is a bug.
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
