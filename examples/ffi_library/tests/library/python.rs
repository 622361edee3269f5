//! The library in Python, through the package `tvm_ffi`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use disco_conformance::{Fetched, Required};

/// The packages that `cargo xtask check` fetches, with the version of Python for which they are.
const PACKAGES: [&str; 3] = ["apache-tvm-ffi-0.1.15.post2", "numpy-2.4.6", "typing-extensions-4.16.0"];
const PYTHON: &str = "python3.11";

/// Folders of the packages. `None`, with a line on standard error, if Python or a package is not there.
fn packages() -> Option<Vec<PathBuf>> {
    if let Err(error) = Command::new(PYTHON).arg("--version").output() {
        assert!(!Required::from_env().contains("ffi"), "DISCO_REQUIRE: {PYTHON} can't be started: {error}");
        eprintln!("skipped: {PYTHON} can't be started: {error}");
        return None;
    }
    PACKAGES.iter().map(|package| Fetched::new(package).required_by("ffi").find()).collect()
}

#[test]
fn python_calls_the_functions_and_gets_their_errors() {
    let Some(packages) = packages() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calls.py");
    let mut python = Command::new(PYTHON);
    python.arg(script).arg(super::library()).env("PYTHONPATH", env::join_paths(packages).unwrap());
    // Other tests set it.
    python.env_remove("DISCO_TVM_FFI_LIBRARY");
    let output = python.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, "all calls returned what they should\n");
}
