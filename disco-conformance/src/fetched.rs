//! What `cargo xtask test` has fetched.

use std::env;
use std::path::{Path, PathBuf};

use crate::require::Required;

/// NVRTC's file; none where it was not fetched, which is said.
///
/// # Panics
/// `DISCO_REQUIRE` has `nccl`, and it is not there.
pub fn nvrtc() -> Option<PathBuf> {
    const FILE: &str = "nvidia-cuda-nvrtc-cu12-12.8.93/lib/libnvrtc.so.12";
    let file = env::var_os("DISCO_TEST_CACHE").map(|cache| Path::new(&cache).join(FILE)).filter(|file| file.is_file());
    if file.is_none() {
        assert!(!Required::from_env().contains("nccl"), "DISCO_REQUIRE: NVRTC is not there");
        eprintln!("skipped: NVRTC is not there; `cargo xtask test` fetches it");
    }
    file
}
