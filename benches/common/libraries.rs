//! MPI libraries beside which benchmarks run.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The libraries that `cargo xtask test` has fetched.
pub(crate) fn fetched() -> Vec<PathBuf> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-cache");
    let cache = env::var_os("DISCO_TEST_CACHE").map_or(cache, PathBuf::from);
    let folders = fs::read_dir(cache).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let libraries = folders.filter_map(|folder| {
        let files = ["lib/libmpi.so.12", "lib/libmpi.so.40"].map(|file| folder.join(file));
        files.into_iter().find(|file| file.is_file())
    });
    libraries.collect()
}
