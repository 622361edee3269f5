//! The steps of `cargo xtask check --fast`: what a change can break first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::built::{self, root};
use crate::steps::{self, CRATES, Step, step};
use crate::test_programs;

/// Packages that differ from a commit, also by changes that are not committed, and packages that depend on them.
struct Touched {
    /// Packages with a changed file.
    changed: BTreeSet<String>,
    /// Packages that depend on these, also through other packages and in their tests.
    above: BTreeSet<String>,
}

/// Format, clippy, and the tests of the packages that changed since `commit` and of those above. Cargo compiles only
/// these, because the builds are those of the whole gate.
///
/// # Errors
/// Git or cargo fails.
pub(crate) fn steps(commit: &str) -> Result<Vec<Step>> {
    let files = files_since(commit)?;
    let touched = Touched::by(&files, &dependencies()?);
    let mut steps = steps::lints();
    if files.iter().any(|file| file.ends_with(".md")) {
        steps.push(steps::guide());
    }
    if !touched.changed.is_empty() {
        let [changed, above] = [&touched.changed, &touched.above]
            .map(|packages| packages.iter().map(String::as_str).collect::<Vec<_>>().join(","));
        println!("== changed: {changed}; above: {above}");
        steps.push(step("tests compile", &format!("{} --quiet", test_programs::build())));
        let args = format!("run --quiet --package xtask -- programs --changed={changed} --above={above}");
        steps.push(step("tests", &args));
    }
    Ok(steps)
}

/// Files that differ between `commit`'s branching point and the working tree, relative to the root.
fn files_since(commit: &str) -> Result<Vec<String>> {
    let base = git(&["merge-base", commit, "HEAD"])?;
    let changed = git(&["diff", "--name-only", base.trim()])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

fn git(args: &[&str]) -> Result<String> {
    output(Command::new("git").current_dir(root()).args(args))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", command.get_program().display(), errors.trim());
    Ok(String::from_utf8(output.stdout)?)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

/// Names of the dependencies of each package of the workspace.
fn dependencies() -> Result<BTreeMap<String, Vec<String>>> {
    let metadata = output(built::cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let packages = serde_json::from_str::<Metadata>(&metadata).context("cannot read cargo's metadata")?.packages;
    let names = |package: &Package| package.dependencies.iter().map(|dependency| dependency.name.clone()).collect();
    Ok(packages.iter().map(|package| (package.name.clone(), names(package))).collect())
}

impl Touched {
    fn by(files: &[String], dependencies: &BTreeMap<String, Vec<String>>) -> Self {
        let changed: BTreeSet<_> = files.iter().flat_map(|file| packages_of(file)).map(str::to_owned).collect();
        let mut all = changed.clone();
        loop {
            let is_above = |(name, on): &(&String, &Vec<String>)| {
                !all.contains(*name) && on.iter().any(|dependency| all.contains(dependency))
            };
            let above: Vec<_> = dependencies.iter().filter(is_above).map(|(name, _)| name.clone()).collect();
            if above.is_empty() {
                return Self { above: all.difference(&changed).cloned().collect(), changed };
            }
            all.extend(above);
        }
    }
}

/// The packages that a file belongs to: none for documents and for what is not in the workspace, all for the manifest
/// of the workspace.
fn packages_of(file: &str) -> Vec<&'static str> {
    let is_in = |folder: &&(&str, &str)| Path::new(file).starts_with(folder.1);
    if file.ends_with(".md") {
        return Vec::new();
    }
    if ["Cargo.toml", "Cargo.lock", ".cargo/config.toml"].contains(&file) {
        return CRATES.iter().map(|(name, _)| *name).collect();
    }
    let (facade, others) = (CRATES[0].0, &CRATES[1..]);
    match others.iter().find(is_in) {
        Some((name, _)) => vec![name],
        None if ["src", "examples"].iter().any(|folder| Path::new(file).starts_with(folder)) => vec![facade],
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Touched, packages_of};

    #[test]
    fn files_belong_to_the_package_of_their_folder() {
        assert_eq!(packages_of("disco-core/src/lib.rs"), ["disco-core"]);
        assert_eq!(packages_of("disco-cli/tests/nccl.rs"), ["disco-runtime-cli"]);
        assert_eq!(packages_of("src/lib.rs"), ["disco-runtime"]);
        assert_eq!(packages_of("docs/models.md"), [""; 0]);
        assert_eq!(packages_of("Cargo.lock").len(), super::CRATES.len());
    }

    #[test]
    fn packages_above_a_change_are_found_through_others() {
        let depends = |on: &[&str]| on.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let dependencies = BTreeMap::from([
            ("disco-core".to_owned(), depends(&[])),
            ("disco-channel".to_owned(), depends(&["disco-core"])),
            ("disco-runtime".to_owned(), depends(&["disco-channel"])),
            ("disco-gpu-double".to_owned(), depends(&[])),
        ]);
        let touched = Touched::by(&["disco-core/src/lib.rs".to_owned()], &dependencies);
        assert_eq!(touched.changed.iter().collect::<Vec<_>>(), ["disco-core"]);
        assert_eq!(touched.above.iter().collect::<Vec<_>>(), ["disco-channel", "disco-runtime"]);
    }
}
