//! Helpers that run the `disco` command with the libraries of a test double.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the command with `folder` as its library path.
pub(crate) fn disco(folder: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
    command.args(args).env("LD_LIBRARY_PATH", folder);
    let read = ["DISCO_NCCL_LIBRARY", "DISCO_RCCL_LIBRARY", "DISCO_P2P_TOPOLOGY"];
    read.into_iter().for_each(|variable| _ = command.env_remove(variable));
    command.envs(variables.iter().copied()).output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Runs `parts` of the conformance suite in sessions of threads: pairs of a number of workers and a filter.
pub(crate) fn conforms(backend: &str, folder: &Path, variables: &[(&str, &str)], parts: &[(&str, &str)]) {
    conforms_in("threads", backend, folder, variables, parts);
}

/// Runs `parts` of the conformance suite in sessions of kind `session`.
pub(crate) fn conforms_in(
    session: &str,
    backend: &str,
    folder: &Path,
    variables: &[(&str, &str)],
    parts: &[(&str, &str)],
) {
    for (workers, filter) in parts {
        let args = ["check", "--backend", backend, "--session", session, "--workers", workers, "--filter", filter];
        let checked = disco(folder, variables, &args);
        assert!(
            checked.status.success() && text(&checked).contains(" 0 failed"),
            "{workers} workers ({session}), `{filter}`: {}",
            text(&checked)
        );
    }
}

/// The reason that `disco backends` prints for an unavailable backend.
pub(crate) fn unavailable_reason(backend: &str, folder: &Path, variables: &[(&str, &str)]) -> String {
    let listed = disco(folder, variables, &["backends"]);
    assert!(listed.status.success(), "{}", text(&listed));
    let listed = text(&listed);
    let start = format!("{backend:<8} unavailable  ");
    let line = listed.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("{listed}")).to_owned()
}
