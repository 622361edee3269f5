//! The programs of the kit.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::root;

/// A program: its name in the kit, and where cargo has put it.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) file: PathBuf,
}

/// Their names in the kit, and the kind and name of the target of each.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("disco", "bin", "disco"),
    ("digits", "example", "digits"),
    ("gpu_evidence", "example", "gpu_evidence"),
    ("nccl_tests", "test", "nccl"),
    ("nccl_bench", "bench", "nccl"),
];

const BUILDS: [&str; 3] = [
    "build --package disco-cli",
    "build --package disco --example digits --example gpu_evidence",
    "test --package disco --test nccl --bench nccl --no-run",
];

/// A line of what cargo says with `--message-format json`.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

/// Builds them.
///
/// # Errors
/// The build fails, or a program is missing.
pub(crate) fn build(is_release: bool) -> Result<Vec<Program>> {
    let mut built = Vec::new();
    for build in BUILDS {
        built.extend(executables(build, is_release)?);
    }
    let find = |(name, kind, target): (&'static str, &str, &str)| {
        let is_it = |(found, _): &&(Target, PathBuf)| found.name == target && found.kind.iter().any(|it| it == kind);
        let (_, file) = built.iter().find(is_it).with_context(|| format!("cargo has built no {kind} {target}"))?;
        Ok(Program { name, file: file.clone() })
    };
    PROGRAMS.into_iter().map(find).collect()
}

fn executables(build: &str, is_release: bool) -> Result<Vec<(Target, PathBuf)>> {
    println!("== cargo {build}");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(build.split(' ')).args(["--quiet", "--message-format", "json"]);
    if is_release {
        command.arg("--release");
    }
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo {build}: {}", output.status);
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    Ok(messages.filter_map(|message| Some((message.target?, message.executable?))).collect())
}
