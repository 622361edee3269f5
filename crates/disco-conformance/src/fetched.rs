//! Files that `cargo xtask check` fetches, or that are set by variables.

use std::path::{Path, PathBuf};

use disco_core::env::Variable;

use crate::require::Required;

/// The folder of fetched files.
const CACHE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-cache");

/// A file or a folder that `cargo xtask check` fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    path: &'static str,
    is_long: bool,
    harness: Option<&'static str>,
}

impl Fetched {
    /// A path in `target/test-cache`.
    pub const fn new(path: &'static str) -> Self {
        Self { path, is_long: false, harness: None }
    }

    /// A path in `target/test-cache` that only `cargo xtask test --long` fetches.
    pub const fn long(path: &'static str) -> Self {
        Self { is_long: true, ..Self::new(path) }
    }

    /// Makes its absence a failure if `DISCO_REQUIRE` has `harness`.
    pub const fn required_by(self, harness: &'static str) -> Self {
        Self { harness: Some(harness), ..self }
    }

    /// The path. `None` if nothing is there.
    pub fn path(self) -> Option<PathBuf> {
        Some(Path::new(CACHE).join(self.path)).filter(|path| path.exists())
    }

    /// The path. `None`, with a line on standard error, if nothing is there.
    ///
    /// # Panics
    /// `DISCO_REQUIRE` requires it, and nothing is there.
    pub fn find(self) -> Option<PathBuf> {
        let found = self.path();
        if found.is_none() {
            let (path, command) = (self.path, if self.is_long { "test --long" } else { "check" });
            let is_required = self.harness.is_some_and(|harness| Required::from_env().contains(harness));
            assert!(!is_required, "DISCO_REQUIRE: {path} is not there: run `cargo xtask {command}`");
            eprintln!("skipped: {path} is not there; `cargo xtask {command}` fetches it");
        }
        found
    }
}

/// The path of NVRTC: `DISCO_NVRTC_LIBRARY`, or else the fetched file. None, with a line on standard error, if neither
/// exists.
///
/// # Panics
/// `DISCO_REQUIRE` has `nccl`, and neither file exists.
pub fn nvrtc() -> Option<PathBuf> {
    let named = Variable::read("DISCO_NVRTC_LIBRARY").path();
    let fetched = || Fetched::new("nvidia-cuda-nvrtc-cu12-12.8.93/lib/libnvrtc.so.12").path();
    let file = named.or_else(fetched).filter(|file| file.is_file());
    if file.is_none() {
        assert!(!Required::from_env().contains("nccl"), "DISCO_REQUIRE: NVRTC is not there");
        eprintln!("skipped: NVRTC is not there: `cargo xtask check` fetches it, and DISCO_NVRTC_LIBRARY names one");
    }
    file
}

/// The path of NVRTC 13, which `cargo xtask test --long` fetches. None, with a line on standard error, if it does not
/// exist.
pub fn nvrtc_13() -> Option<PathBuf> {
    Fetched::long("nvidia-cuda-nvrtc-13.0.88/lib/libnvrtc.so.13").find()
}

/// The path of libtvm_ffi, which `cargo xtask check` fetches. None, with a line on standard error, if it does not exist.
///
/// # Panics
/// `DISCO_REQUIRE` has `ffi`, and the file does not exist.
pub fn libtvm_ffi() -> Option<PathBuf> {
    Fetched::new("apache-tvm-ffi-0.1.15.post2/tvm_ffi/lib/libtvm_ffi.so").required_by("ffi").find()
}
