//! Programs from crates.io that steps run, installed into `target/tools` once per version.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::built::{cargo, root};
use crate::guide;

/// Version of cargo-deny. Its package's lock file pins its dependencies.
const CARGO_DENY: &str = "0.20.2";

/// Checks the licences and sources of all dependencies against `deny.toml`. Building cargo-deny takes about five
/// minutes of CPU time, once.
///
/// # Errors
/// cargo-deny can't be installed, or rejects a dependency.
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

/// Checks the guide's links, chapters and variables, and builds it into `target/book`. Building mdBook takes about four
/// minutes of CPU time, once.
///
/// # Errors
/// The guide does not match the repository, mdBook can't be installed, or mdBook warns.
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

/// The path of a program, which is installed if it is missing.
fn install(name: &str, version: &str) -> Result<PathBuf> {
    let folder = root().join("target/tools").join(format!("{name}-{version}"));
    let program = folder.join("bin").join(name);
    if !program.is_file() {
        println!("== cargo install {name} {version}");
        let mut command = cargo();
        command.args(["install", "--quiet", "--locked", name, "--version", version, "--root"]).arg(&folder);
        if name == "mdbook" {
            // Builds mdBook without its server and its search.
            command.arg("--no-default-features");
        }
        let status = command.status().context("cannot start cargo")?;
        ensure!(status.success(), "cargo install {name}: {status}");
    }
    Ok(program)
}
