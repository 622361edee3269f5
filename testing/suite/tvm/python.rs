//! TVM from PyPI, as `cargo xtask test --long` fetches it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use disco_conformance::Fetched;

/// The folders of the cache with TVM and the packages that it imports.
const FOLDERS: [&str; 5] = [
    "apache-tvm-0.27.0.post1",
    "apache-tvm-ffi-0.1.15.post2",
    "numpy-2.4.6",
    "psutil-7.2.2",
    "typing-extensions-4.16.0",
];

/// The value of `PYTHONPATH` with TVM and the entry module, or `None` without TVM.
pub(crate) fn path() -> Option<OsString> {
    let folders = FOLDERS.iter().map(|name| Fetched::long(name).required_by("tvm").find());
    let mut folders: Vec<PathBuf> = folders.collect::<Option<_>>()?;
    folders.push(entry_module().to_owned());
    Some(std::env::join_paths(folders).unwrap())
}

/// Lines before a script that controls a session of TVM: worker 0, a thread of this process, gets TVM's functions
/// for tests.
const PREAMBLE: &str = r#"
import os, sys
import disco_tvm
import numpy as np
import tvm
import tvm.exec.disco_worker
from tvm.runtime import disco
from tvm_ffi import Shape

def raised(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error).strip()
    return "no error"
"#;

/// The folder of the entry module, which runs this program as the worker.
fn entry_module() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let text = include_str!("../../../disco-cli/python/disco_tvm.py");
        let program = format!("PROGRAM = [{:?}]\n", std::env::current_exe().unwrap());
        module("disco_tvm", &text.replace("PROGRAM = [\"disco\"]\n", &program))
    })
}

/// Runs a script after the preamble with TVM. Returns its standard output and error, or `None` without TVM.
///
/// # Panics
/// The script fails.
pub(crate) fn run(script: &str) -> Option<(String, String)> {
    let mut python = Command::new("python3");
    python.args(["-c", &format!("{PREAMBLE}{script}")]).env("PYTHONPATH", path()?);
    let output = python.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    Some((out, err))
}

/// A file that Python imports as a module, in a folder of its own.
pub(crate) fn module(name: &str, text: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("disco-tests-tvm-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    });
    fs::write(folder.join(format!("{name}.py")), text).unwrap();
    folder.clone()
}
