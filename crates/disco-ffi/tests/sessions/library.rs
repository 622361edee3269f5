//! The test libraries, compiled once per run of the program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use disco_conformance::Required;

/// A folder of this run, removed at its end by `main`.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

/// The library of a source in `c/`. None, with a line on standard error, if there is no C compiler.
///
/// # Panics
/// The source has errors, or `DISCO_REQUIRE` has `ffi` and there is no compiler.
pub(crate) fn compiled(source: &str) -> Option<PathBuf> {
    make(source, &format!("lib{}.so", source.split_once('.').unwrap().0), &[])
}

/// As [`compiled`], for the source `raises.c`, which is linked to libtvm_ffi.
pub(crate) fn linked(tvm: &Path) -> Option<PathBuf> {
    make("raises.c", "liblinked.so", &[tvm])
}

fn make(source: &str, name: &str, linked: &[&Path]) -> Option<PathBuf> {
    static COMPILING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILING.lock().unwrap_or_else(|error| error.into_inner());
    let (_, kind) = source.split_once('.').unwrap();
    let library = folder().join(name);
    if library.is_file() {
        return Some(library);
    }
    let compiler = if kind == "cpp" { "c++" } else { "cc" };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions/c").join(source);
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O1", "-w", "-pthread", "-o"]).args([&library, &source]).args(linked);
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(library)
        }
        Err(error) => {
            assert!(!Required::from_env().contains("ffi"), "DISCO_REQUIRE: no {compiler}: {error}");
            eprintln!("skipped: no {compiler}: {error}");
            None
        }
    }
}

/// The library of a source, or the end of the test.
macro_rules! library {
    ($source:literal) => {
        match crate::library::compiled($source) {
            Some(library) => library,
            None => return,
        }
    };
}
pub(crate) use library;
