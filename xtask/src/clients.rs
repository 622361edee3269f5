//! What the long tests of the server of language models need: its clients, a Python environment, and chat templates of published models.
//! Both are in the cache of the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::built::root;
use crate::libraries::{cache, run, unpacked_once};
use crate::python::{environment, interpreter};

/// The environment's folder in the cache, which the tests name, too.
const FOLDER: &str = "serving-clients";
/// The folder of the templates.
const TEMPLATES: &str = "llama-cpp-templates-0.3.36";
/// The source of llama.cpp's Python package (MIT), which has the templates of models under the licences of these; 77 MB.
const SOURCE: &str =
    "llama-cpp-python==0.3.36 --hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";

/// Fetches the clients and the templates, unless they are there or Python has another version.
///
/// # Errors
/// They can't be fetched.
pub(crate) fn fetch() -> Result<()> {
    let Some(python) = interpreter("the clients of the server")? else { return Ok(()) };
    let requirements = root().join("crates/disco-serve/tests/clients/requirements.txt");
    environment(&python, &cache().join(FOLDER), &requirements)?;
    unpacked_once(&cache(), TEMPLATES, templates)
}

/// Downloads and unpacks the templates. Returns their folder.
fn templates(folder: &Path) -> Result<PathBuf> {
    let wanted = folder.join("requirements.txt");
    fs::write(&wanted, SOURCE)?;
    let mut download = Command::new("python3");
    download.args("-m pip download --quiet --no-deps --no-binary llama-cpp-python --require-hashes".split(' '));
    run(download.arg("-r").arg(&wanted).arg("-d").arg(folder))?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--strip-components=4", "--wildcards", "--file", "llama_cpp_python-0.3.36.tar.gz"]);
    run(unpack.arg("*/vendor/llama.cpp/models/templates/*").current_dir(folder))?;
    Ok(folder.join("templates"))
}
