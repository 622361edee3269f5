//! How the fuzz targets of `fuzz/` are run, as data.

use std::env::consts::ARCH;

use crate::steps::{Step, step};

/// Fuzz targets. A test holds this to the manifest.
const TARGETS: [&str; 9] =
    ["connection", "frame", "handshake", "invitation", "message", "name", "notice", "reply", "shared_ring"];

/// What `cargo fuzz` builds with, without its driver and a nightly toolchain.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// A minute on each. What a decoder allocates must be near what came: no input has more than 4 KiB. Inputs that were found go on
/// in the next run; those that fail are kept under `target/fuzz/failures`.
const LIMITS: &str = "-max_total_time=60 -max_len=4096 -malloc_limit_mb=32 -rss_limit_mb=512 -timeout=5 \
    -verbosity=0 -print_funcs=0 -print_final_stats=1 -create_missing_dirs=1";

/// Format of the targets, which are a workspace of their own.
pub(crate) fn lints() -> Vec<Step> {
    vec![step("format, fuzz targets", "fmt --manifest-path fuzz/Cargo.toml --check")]
}

/// Clippy, which needs a C++ compiler as the targets do, and one step for each of them.
pub(crate) fn long_tests() -> Vec<Step> {
    let clippy = "clippy --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --all-targets -- -D warnings";
    let clippy = step("clippy, fuzz targets", clippy).with("RUSTFLAGS", "--cfg fuzzing");
    std::iter::once(clippy).chain(TARGETS.map(fuzz)).collect()
}

fn fuzz(name: &str) -> Step {
    let build = format!("--manifest-path fuzz/Cargo.toml --release --target {ARCH}-unknown-linux-gnu");
    let folders = format!("-artifact_prefix=target/fuzz/failures/{name}/ target/fuzz/corpus/{name}");
    let args = format!("run --quiet {build} --target-dir target/fuzz --bin {name} -- {LIMITS} {folders}");
    step(&format!("fuzz, {name}"), &args)
        // What was freed is not kept for long, so that it does not count.
        .with("ASAN_OPTIONS", "quarantine_size_mb=16")
        .with("RUSTC_BOOTSTRAP", "1")
        .with("RUSTFLAGS", FLAGS)
}

#[cfg(test)]
mod tests {
    use super::TARGETS;

    const MANIFEST: &str = include_str!("../../fuzz/Cargo.toml");

    #[test]
    fn every_fuzz_target_has_a_row() {
        let bins = MANIFEST.split("[[bin]]\nname = \"").skip(1);
        let names: Vec<_> = bins.filter_map(|bin| bin.split_once('"')).map(|(name, _)| name).collect();
        assert_eq!(TARGETS[..], names);
    }
}
