//! The library in Python, through the package `tvm_ffi`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages that `cargo xtask test` fetches, with the version of Python for which they are.
const PACKAGES: [&str; 3] = ["apache-tvm-ffi-0.1.15.post2", "numpy-2.4.6", "typing-extensions-4.16.0"];
const PYTHON: &str = "python3.11";

/// Folders of the packages; why they can't be used if they can't.
fn packages() -> Result<Vec<PathBuf>, String> {
    let cache = env::var_os("DISCO_TEST_CACHE").ok_or("DISCO_TEST_CACHE is not set")?;
    let version = Command::new(PYTHON).arg("--version").output();
    version.map_err(|error| format!("{PYTHON} can't be started: {error}"))?;
    let folders = PACKAGES.map(|package| Path::new(&cache).join(package));
    match folders.iter().find(|folder| !folder.is_dir()) {
        Some(absent) => Err(format!("{} is not there: `cargo xtask test` fetches it", absent.display())),
        None => Ok(folders.to_vec()),
    }
}

#[test]
fn python_calls_the_functions_and_gets_their_errors() {
    let packages = match packages() {
        Ok(packages) => packages,
        Err(why) => {
            let required = env::var("DISCO_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "ffi"), "DISCO_REQUIRE: {why}");
            return eprintln!("skipped: {why}");
        }
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calls.py");
    let library = env::current_exe().unwrap().with_file_name("libdisco_ffi_library.so");
    let mut python = Command::new(PYTHON);
    python.arg(script).arg(library).env("PYTHONPATH", env::join_paths(packages).unwrap());
    // Other tests set it.
    python.env_remove("DISCO_TVM_FFI_LIBRARY");
    let output = python.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, "all calls returned what they should\n");
}
