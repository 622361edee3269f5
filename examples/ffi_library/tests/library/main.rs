//! The library in Python and on workers.

#![allow(clippy::unwrap_used, reason = "tests")]

mod python;
mod session;

use std::env;
use std::path::PathBuf;

/// The library, which cargo builds beside the tests.
fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libdisco_ffi_library.so")
}
