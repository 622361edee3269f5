//! The steps of `cargo xtask check --fast`: what a change can break first.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::built::{self, root};
use crate::steps::{self, CRATES, Step, step};
use crate::test_programs::{FROM_END_TO_END, Selection};

/// Format, clippy, and tests of the packages that changed since `commit` and of those above. Cargo compiles only these,
/// because the packages and features are those of the whole gate.
///
/// # Errors
/// Git or cargo fails.
pub(crate) fn steps(commit: &str) -> Result<Vec<Step>> {
    let files = files_since(commit)?;
    let selection = selection(&files, &built::packages(&["--no-deps"])?);
    let mut steps = steps::lints();
    if files.iter().any(|file| file.ends_with(".md")) {
        steps.push(steps::guide());
    }
    if !selection.changed.is_empty() {
        let Selection { changed, above, tests, .. } = &selection;
        let [changed, above, tests] = [changed, above, tests].map(|names| names.join(","));
        steps.push(step("tests compile", &format!("{} --quiet", selection.build())));
        let args =
            format!("run --quiet --package xtask -- programs --changed={changed} --above={above} --tests={tests}");
        steps.push(step("tests", &args));
    }
    Ok(steps)
}

/// Files that differ between `commit`'s branching point and the working tree, relative to the root.
///
/// # Errors
/// Git fails, for example because it does not know the commit.
fn files_since(commit: &str) -> Result<Vec<String>> {
    let base = git(&["merge-base", commit, "HEAD"])?;
    let changed = git(&["diff", "--name-only", base.trim()])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

/// The output of git in the root of the workspace.
///
/// # Errors
/// Git fails.
pub(crate) fn git(args: &[&str]) -> Result<String> {
    output(Command::new("git").current_dir(root()).args(args))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", command.get_program().display(), errors.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Folders of files whose changes, beside others of the command, are a reason to run it over MPI.
const OF_MPI: [&str; 2] = ["disco-mpi", "disco-cli/tests/mpi"];

/// Cargo's kind of a target that is a test program.
const TEST: &str = "test";

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

/// The packages of changed files, the packages that depend on them (also through others and in their tests), and the
/// names of the test programs.
fn selection(files: &[String], packages: &[Package]) -> Selection {
    let changed: BTreeSet<_> = files.iter().flat_map(|file| packages_of(file)).collect();
    let mut all = changed.clone();
    loop {
        let is_above = |package: &&Package| {
            let depends = package.dependencies.iter().any(|dependency| all.contains(&*dependency.name));
            depends && !all.contains(&*package.name)
        };
        let above: Vec<_> = packages.iter().filter(is_above).map(|package| &*package.name).collect();
        if above.is_empty() {
            break;
        }
        all.extend(above);
    }
    let of_changed = packages.iter().filter(|package| changed.contains(&*package.name));
    let targets =
        of_changed.flat_map(|package| &package.targets).filter(|target| target.kind.contains(&TEST.to_owned()));
    let mut tests: BTreeSet<_> = targets.map(|target| &*target.name).collect();
    if all.contains("disco-tests") {
        tests.insert(FROM_END_TO_END);
    }
    // The ranks of MPI run for minutes, alone.
    if !files.iter().any(|file| OF_MPI.iter().any(|folder| Path::new(file).starts_with(folder))) {
        tests.remove("mpi");
    }
    let names = |names: &mut dyn Iterator<Item = &&str>| names.map(|name| (*name).to_owned()).collect();
    Selection {
        group: None,
        changed: names(&mut changed.iter()),
        above: names(&mut all.difference(&changed)),
        tests: names(&mut tests.iter()),
    }
}

/// The packages that a file belongs to: no package for documents and for files outside of the workspace's packages, all
/// packages for the manifest of the workspace.
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
    use super::{Dependency, Package, Target, packages_of, selection};

    #[test]
    fn files_belong_to_the_package_of_their_folder() {
        assert_eq!(packages_of("disco-core/src/lib.rs"), ["disco-core"]);
        assert_eq!(packages_of("disco-cli/tests/gpus/nccl.rs"), ["disco-runtime-cli"]);
        assert_eq!(packages_of("src/lib.rs"), ["disco-runtime"]);
        assert_eq!(packages_of("docs/models.md"), [""; 0]);
        assert_eq!(packages_of("Cargo.lock").len(), super::CRATES.len());
    }

    #[test]
    fn packages_above_a_change_are_found_through_others() {
        let package = |name: &str, on: &[&str], test: &str| Package {
            name: name.to_owned(),
            dependencies: on.iter().map(|name| Dependency { name: (*name).to_owned() }).collect(),
            targets: vec![Target { kind: vec!["test".to_owned()], name: test.to_owned() }],
        };
        let packages = [
            package("disco-tests", &["disco-runtime"], "sessions"),
            package("disco-core", &[], "suite"),
            package("disco-channel", &["disco-core"], "ring"),
            package("disco-runtime", &["disco-channel"], "facade"),
            package("disco-gpu-double", &[], "double"),
        ];
        let selection = selection(&["disco-core/src/lib.rs".to_owned()], &packages);
        assert_eq!(selection.changed, ["disco-core"]);
        assert_eq!(selection.above, ["disco-channel", "disco-runtime", "disco-tests"]);
        assert_eq!(selection.tests, ["standard", "suite"]);
    }

    #[test]
    fn the_command_runs_over_mpi_if_a_file_of_mpi_has_changed() {
        let tests = ["cli", "mpi"].map(|name| Target { kind: vec!["test".to_owned()], name: name.to_owned() });
        let packages =
            [Package { name: "disco-runtime-cli".to_owned(), dependencies: Vec::new(), targets: tests.into() }];
        let tests = |file: &str| selection(&[file.to_owned()], &packages).tests;
        assert_eq!(tests("disco-cli/src/run.rs"), ["cli"]);
        assert_eq!(tests("disco-cli/tests/mpi/hosts.rs"), ["cli", "mpi"]);
    }
}
