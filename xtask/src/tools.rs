//! Programs from crates.io that steps run, installed into `target/tools` once for each version.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::built::{cargo, root};
use crate::guide;

/// Version of cargo-deny; the lock file of its package pins what it is built from.
const CARGO_DENY: &str = "0.20.2";

/// Checks the licences and sources of all dependencies as `deny.toml` says. Building cargo-deny takes about five minutes of processor time,
/// once.
///
/// # Errors
/// cargo-deny can't be installed, or refuses a dependency.
pub(crate) fn deny() -> Result<()> {
    let deny = install("cargo-deny", CARGO_DENY)?;
    let mut command = Command::new(deny);
    command
        .args(["--log-level", "error", "--all-features", "--workspace", "check", "bans", "licenses", "sources"])
        .current_dir(root());
    let status = command.status().context("cannot start cargo-deny")?;
    ensure!(status.success(), "cargo-deny: {status}");
    Ok(())
}

/// Version of mdBook.
const MDBOOK: &str = "0.5.4";

/// Builds the guide into `target/book`, after checking its links, chapters and variables. Building mdBook takes about four minutes of
/// processor time, once.
///
/// # Errors
/// The guide does not match the repository, or mdBook can't be installed or warns.
pub(crate) fn book() -> Result<()> {
    guide::check()?;
    let mut command = Command::new(install("mdbook", MDBOOK)?);
    let output = command.args(["build", "docs"]).current_dir(root()).output().context("cannot start mdbook")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    ensure!(
        output.status.success() && !said.contains("WARN") && !said.contains("ERROR"),
        "mdbook: {}\n{said}",
        output.status
    );
    Ok(())
}

/// The program of this name, after installing it if it is missing.
fn install(name: &str, version: &str) -> Result<PathBuf> {
    let folder = root().join("target/tools").join(format!("{name}-{version}"));
    let program = folder.join("bin").join(name);
    if !program.is_file() {
        println!("== cargo install {name} {version}");
        let mut command = cargo();
        command.args(["install", "--quiet", "--locked", name, "--version", version, "--root"]).arg(&folder);
        if name == "mdbook" {
            // Neither a server nor a search is needed.
            command.arg("--no-default-features");
        }
        let status = command.status().context("cannot start cargo")?;
        ensure!(status.success(), "cargo install {name}: {status}");
    }
    Ok(program)
}
