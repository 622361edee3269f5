//! Programs that cargo has built, from its JSON messages.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use disco_testing::features;

/// A program that cargo has built.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    /// Kind and name of the target, such as `test` and `session`.
    pub(crate) kind: String,
    pub(crate) name: String,
    /// Cargo's id of the program's package.
    pub(crate) package: String,
    /// The folder of the package, in which cargo runs tests.
    pub(crate) folder: PathBuf,
    pub(crate) file: PathBuf,
    /// Whether `cargo test` runs it.
    pub(crate) is_test: bool,
}

/// A line of `--message-format json`.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    package_id: Option<String>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// The cargo that runs this program, in the root of the workspace, so that every step uses the caller's toolchain.
pub(crate) fn cargo() -> Command {
    let mut command = features::cargo(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // What incremental builds keep is gigabytes, and a first build takes longer with it.
    if env::var_os("CARGO_INCREMENTAL").is_none() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// The packages that `cargo metadata ARGS` lists, with the fields of `P`.
///
/// # Errors
/// Cargo fails, or a package lacks a field.
pub(crate) fn packages<P: DeserializeOwned>(args: &[&str]) -> Result<Vec<P>> {
    #[derive(Deserialize)]
    struct Metadata<P> {
        packages: Vec<P>,
    }
    let output = cargo().args(["metadata", "--quiet", "--format-version", "1"]).args(args).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Metadata<P> = serde_json::from_slice(&output.stdout).context("cannot read cargo's metadata")?;
    Ok(metadata.packages)
}

/// Runs `cargo ARGS` and returns the programs that it built. `args` are separated by spaces.
///
/// # Errors
/// The build fails.
pub(crate) fn build(args: &str) -> Result<Vec<Built>> {
    build_with(cargo(), args)
}

/// [`build`], with a cargo that has an environment of its own.
///
/// # Errors
/// The build fails.
pub(crate) fn build_with(mut command: Command, args: &str) -> Result<Vec<Built>> {
    command.args(args.split_whitespace()).args(["--quiet", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo {args}: {}", output.status);
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    Ok(messages.filter_map(Message::program).collect())
}

impl Built {
    /// The name of the program's package.
    pub(crate) fn package_name(&self) -> &str {
        // `file:///…/disco-core#0.1.0`, or `file:///…/tests#disco-tests@0.1.0` if the folder has another name.
        let (folder, version) = self.package.rsplit_once('#').unwrap_or((&self.package, ""));
        match version.split_once('@') {
            Some((name, _)) => name,
            None => folder.rsplit('/').next().unwrap_or(folder),
        }
    }

    /// Package, kind and name, such as `disco-core test suite`.
    pub(crate) fn label(&self) -> String {
        format!("{} {} {}", self.package_name(), self.kind, self.name)
    }
}

impl Message {
    fn program(self) -> Option<Built> {
        let Target { kind, name } = self.target?;
        Some(Built {
            kind: kind.into_iter().next()?,
            name,
            package: self.package_id?,
            folder: self.manifest_path?.parent()?.to_owned(),
            file: self.executable?,
            is_test: self.profile?.test,
        })
    }
}
