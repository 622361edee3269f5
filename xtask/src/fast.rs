//! The steps of `cargo xtask check --fast`: what a change can break first.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::built::root;
use crate::steps::{self, Step, step};
use crate::test_programs::{FROM_END_TO_END, Selection};
use crate::workspace::{Package, packages};

/// Format, clippy, and tests of the packages that changed since `commit` and of those above. Cargo compiles only these,
/// because the packages and features are those of the whole gate.
///
/// # Errors
/// Git or cargo fails.
pub(crate) fn steps(commit: &str) -> Result<Vec<Step>> {
    let files = files_since(commit)?;
    let selection = selection(&files, &packages()?);
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

/// The packages of changed files, the packages that depend on them (also through others and in their tests), and the
/// names of the test programs.
fn selection(files: &[String], packages: &[Package]) -> Selection {
    let changed: BTreeSet<_> = files.iter().flat_map(|file| packages_of(file, packages)).collect();
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
    let mut tests: BTreeSet<_> =
        of_changed.flat_map(|package| package.targets_of("test")).map(|target| &*target.name).collect();
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
fn packages_of<'a>(file: &str, packages: &'a [Package]) -> Vec<&'a str> {
    let is_in = |folder: &Path| Path::new(file).starts_with(folder);
    if file.ends_with(".md") {
        return Vec::new();
    }
    if ["Cargo.toml", "Cargo.lock", ".cargo/config.toml"].contains(&file) {
        return packages.iter().map(|package| &*package.name).collect();
    }
    // The folder of the facade is the root.
    let is_facade = ["src", "examples"].map(Path::new).into_iter().any(is_in);
    let found = packages.iter().filter(|package| is_in(&package.folder()));
    let found = found.max_by_key(|package| package.folder().components().count());
    found.filter(|package| is_facade || package.folder() != Path::new("")).map(|it| &*it.name).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::{packages_of, selection};
    use crate::built::root;
    use crate::workspace::{Dependency, Package, Target, packages};

    fn target(name: &str) -> Target {
        Target { kind: vec!["test".to_owned()], name: name.to_owned(), required_features: Vec::new() }
    }

    #[test]
    fn files_belong_to_the_package_of_their_folder() {
        let all = packages().unwrap();
        let packages_of = |file: &str| packages_of(file, &all);
        assert_eq!(packages_of("disco-core/src/lib.rs"), ["disco-core"]);
        assert_eq!(packages_of("disco-cli/tests/gpus/nccl.rs"), ["disco-runtime-cli"]);
        assert_eq!(packages_of("examples/backend/src/lib.rs"), ["disco-mailbox"]);
        assert_eq!(packages_of("examples/hello.rs"), ["disco-runtime"]);
        assert_eq!(packages_of("src/lib.rs"), ["disco-runtime"]);
        assert_eq!(packages_of("testing/fuzz/src/lib.rs"), [""; 0]);
        assert_eq!(packages_of("docs/models.md"), [""; 0]);
        assert_eq!(packages_of("Cargo.lock").len(), all.len());
    }

    #[test]
    fn packages_above_a_change_are_found_through_others() {
        let package = |name: &str, on: &[&str], test: &str| Package {
            name: name.to_owned(),
            manifest_path: root().join(name).join("Cargo.toml"),
            dependencies: on.iter().map(|name| Dependency { name: (*name).to_owned() }).collect(),
            targets: vec![target(test)],
            ..Package::default()
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
        let packages = [Package {
            name: "disco-runtime-cli".to_owned(),
            manifest_path: root().join("disco-cli/Cargo.toml"),
            targets: ["cli", "mpi"].map(target).into(),
            ..Package::default()
        }];
        let tests = |file: &str| selection(&[file.to_owned()], &packages).tests;
        assert_eq!(tests("disco-cli/src/run.rs"), ["cli"]);
        assert_eq!(tests("disco-cli/tests/mpi/hosts.rs"), ["cli", "mpi"]);
    }
}
