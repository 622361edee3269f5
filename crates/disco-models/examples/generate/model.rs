//! The files of the model.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The folder of fetched models.
const CACHE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-cache");

/// A model that `cargo xtask fetch` fetches.
pub(crate) struct Fetched {
    /// Its name for the command.
    pub(crate) name: &'static str,
    /// Its file of weights in the folder of fetched models.
    pub(crate) file: &'static str,
}

/// The path of a model: `path` if it is given, else the fetched model, which is fetched if it is missing.
///
/// # Errors
/// There is no such file, or the model can't be fetched.
pub(crate) fn find(path: Option<&Path>, model: &Fetched) -> Result<PathBuf> {
    if let Some(path) = path {
        ensure!(path.exists(), "{}: there is no such file or folder", path.display());
        return Ok(path.to_owned());
    }
    let file = Path::new(CACHE).join(model.file);
    if file.exists() {
        return Ok(file);
    }
    let help = format!("run `cargo xtask fetch {}` in Disco's repository, or pass a model with `--model`", model.name);
    let cargo = env::var_os("CARGO").with_context(|| format!("the model is missing ({}); {help}", file.display()))?;
    eprintln!("fetching the model; this happens once");
    let mut fetch = Command::new(cargo);
    fetch.args(["run", "--quiet", "--package", "xtask", "--", "fetch", model.name]);
    let output = fetch.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success() && file.exists(), "the model could not be fetched; {help}");
    Ok(file)
}
