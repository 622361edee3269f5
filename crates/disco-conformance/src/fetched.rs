//! Libraries that `cargo xtask test` has downloaded, or that are set by variables.

use std::path::PathBuf;

use disco_core::env::Variable;

use crate::require::Required;

/// The path of NVRTC: `DISCO_NVRTC_LIBRARY`, or else the downloaded file. None, with a line on standard error, if
/// neither exists.
///
/// # Panics
/// `DISCO_REQUIRE` has `nccl`, and neither file exists.
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

/// The path of NVRTC 13, which `cargo xtask test --long` downloads. None, with a line on standard error, if it does not
/// exist.
pub fn nvrtc_13() -> Option<PathBuf> {
    let file = fetched("nvidia-cuda-nvrtc-13.0.88/lib/libnvrtc.so.13").filter(|file| file.is_file());
    if file.is_none() {
        eprintln!("skipped: NVRTC 13 is not there: `cargo xtask test --long` fetches it");
    }
    file
}

/// The path of libtvm_ffi, which `cargo xtask test` downloads. None, with a line on standard error, if it does not exist.
///
/// # Panics
/// `DISCO_REQUIRE` has `ffi`, and the file does not exist.
pub fn libtvm_ffi() -> Option<PathBuf> {
    let file = fetched("apache-tvm-ffi-0.1.15.post2/tvm_ffi/lib/libtvm_ffi.so").filter(|file| file.is_file());
    if file.is_none() {
        assert!(!Required::from_env().contains("ffi"), "DISCO_REQUIRE: libtvm_ffi is not there");
        eprintln!("skipped: libtvm_ffi is not there: `cargo xtask test` fetches it");
    }
    file
}

fn fetched(file: &str) -> Option<PathBuf> {
    Variable::read("DISCO_TEST_CACHE").path().map(|cache| cache.join(file))
}
