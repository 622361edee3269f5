//! The steps that run the fuzz targets of `testing/fuzz/`, as data.

use std::env::consts::ARCH;

use anyhow::Result;

use crate::built;
use crate::steps::{Step, step};
use crate::workspace::Package;

/// Compiler flags of `cargo fuzz`, which allow building without it and without a nightly toolchain.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// Options of libFuzzer: one minute per target, inputs of at most 4 KiB. The memory limits fail a decoder that
/// allocates much more than its input. New inputs are kept for the next run, failing ones under `target/fuzz/failures`.
const LIMITS: &str = "-max_total_time=60 -max_len=4096 -malloc_limit_mb=32 -rss_limit_mb=512 -timeout=5 \
    -verbosity=0 -print_funcs=0 -print_final_stats=1 -create_missing_dirs=1";

/// Format of the targets, which have their own workspace.
pub(crate) fn lints() -> Vec<Step> {
    vec![step("format, fuzz targets", "fmt --manifest-path testing/fuzz/Cargo.toml --check")]
}

/// Clippy, which like the targets needs a C++ compiler, and one step per target.
///
/// # Errors
/// Cargo fails.
pub(crate) fn long_tests() -> Result<Vec<Step>> {
    let clippy =
        "clippy --quiet --manifest-path testing/fuzz/Cargo.toml --target-dir target/fuzz --all-targets -- -D warnings";
    let clippy = step("clippy, fuzz targets", clippy).with("RUSTFLAGS", "--cfg fuzzing");
    let packages: Vec<Package> = built::packages(&["--no-deps", "--manifest-path", "testing/fuzz/Cargo.toml"])?;
    let targets = packages.iter().flat_map(|package| package.targets_of("bin"));
    Ok(std::iter::once(clippy).chain(targets.map(|target| fuzz(&target.name))).collect())
}

fn fuzz(name: &str) -> Step {
    let build = format!("--manifest-path testing/fuzz/Cargo.toml --release --target {ARCH}-unknown-linux-gnu");
    let folders = format!("-artifact_prefix=target/fuzz/failures/{name}/ target/fuzz/corpus/{name}");
    let args = format!("run --quiet {build} --target-dir target/fuzz --bin {name} -- {LIMITS} {folders}");
    step(&format!("fuzz, {name}"), &args)
        // A small quarantine, because quarantined memory counts towards the limit.
        .with("ASAN_OPTIONS", "quarantine_size_mb=16")
        .with("RUSTC_BOOTSTRAP", "1")
        .with("RUSTFLAGS", FLAGS)
}
