//! The C library of the soak, whose functions workers call: a source of `disco-ffi`'s tests.

use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/disco-ffi/tests/sessions/c/plain.c");

/// The compiled library, or none, with a line on standard error, without a C compiler.
pub(crate) fn path() -> Option<&'static Path> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(compile).as_deref()
}

fn compile() -> Option<PathBuf> {
    // One for each run of the program, since several may run.
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("soak-{}.so", process::id()));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-w", "-o"]).arg(&library).arg(SOURCE).output();
    match compiled {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(library)
        }
        Err(error) => {
            eprintln!("sessions without libraries: no cc: {error}");
            None
        }
    }
}

/// Removes the library at the end.
pub(crate) fn remove() {
    if let Some(path) = path() {
        _ = std::fs::remove_file(path);
    }
}
