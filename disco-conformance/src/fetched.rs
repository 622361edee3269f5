//! Libraries that `cargo xtask test` has fetched, or that variables name.

use std::path::PathBuf;

use disco_core::env::Variable;

use crate::require::Required;

/// NVRTC's file: the one that `DISCO_NVRTC_LIBRARY` names, else the fetched one. None, with a line on standard error, where neither
/// is there.
///
/// # Panics
/// `DISCO_REQUIRE` has `nccl`, and it is not there.
pub fn nvrtc() -> Option<PathBuf> {
    let named = Variable::read("DISCO_NVRTC_LIBRARY").path();
    let fetched = || fetched("nvidia-cuda-nvrtc-cu12-12.8.93/lib/libnvrtc.so.12");
    let file = named.or_else(fetched).filter(|file| file.is_file());
    if file.is_none() {
        assert!(!Required::from_env().contains("nccl"), "DISCO_REQUIRE: NVRTC is not there");
        eprintln!("skipped: NVRTC is not there: `cargo xtask test` fetches it, and DISCO_NVRTC_LIBRARY names one");
    }
    file
}

/// The file of NVRTC 13, as `cargo xtask test --long` fetches it. None, with a line on standard error, where it is not there.
pub fn nvrtc_13() -> Option<PathBuf> {
    let file = fetched("nvidia-cuda-nvrtc-13.0.88/lib/libnvrtc.so.13").filter(|file| file.is_file());
    if file.is_none() {
        eprintln!("skipped: NVRTC 13 is not there: `cargo xtask test --long` fetches it");
    }
    file
}

fn fetched(file: &str) -> Option<PathBuf> {
    Variable::read("DISCO_TEST_CACHE").path().map(|cache| cache.join(file))
}
