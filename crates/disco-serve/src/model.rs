//! The files of the model.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use disco_models::hub::{Hub, HubName};
use indicatif::{ProgressBar, ProgressStyle};

/// The folder of fetched models.
const CACHE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-cache");

/// A model that `cargo xtask fetch` fetches.
pub(crate) struct Fetched {
    /// Its name for the command.
    pub(crate) name: &'static str,
    /// Its file of weights in the folder of fetched models.
    pub(crate) file: &'static str,
}

/// The path of a model: `model` if it is given, a path or a name on a hub, else the fetched model, which is fetched if it is
/// missing.
///
/// # Errors
/// There is no such file and no such name, or the model can't be fetched.
pub(crate) fn find(model: Option<&str>, default: &Fetched) -> Result<PathBuf> {
    match model {
        Some(path) if Path::new(path).exists() => Ok(path.into()),
        Some(name) => from_hub(name),
        None => fetch(default),
    }
}

/// Downloads a model, with a bar of progress on a terminal.
fn from_hub(name: &str) -> Result<PathBuf> {
    let name: HubName = name.parse().with_context(|| format!("{name}: there is no such file or folder"))?;
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes}")?.progress_chars("=> ");
    let bar = ProgressBar::new(0).with_style(style);
    let path = Hub::from_env().fetch(&name, |downloaded| {
        bar.set_message(downloaded.file.clone());
        bar.set_length(downloaded.total);
        bar.set_position(downloaded.bytes);
    });
    bar.finish_and_clear();
    path.with_context(|| format!("there is no file or folder {name}, and the hub has not given it"))
}

fn fetch(model: &Fetched) -> Result<PathBuf> {
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
