//! MPI libraries beside which benchmarks run.

use std::fs;
use std::path::PathBuf;

/// The libraries that `cargo xtask check` has fetched.
pub(crate) fn fetched() -> Vec<PathBuf> {
    let cache = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/test-cache");
    let folders = fs::read_dir(cache).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let libraries = folders.filter_map(|folder| {
        let files = ["lib/libmpi.so.12", "lib/libmpi.so.40"].map(|file| folder.join(file));
        files.into_iter().find(|file| file.is_file())
    });
    libraries.collect()
}
