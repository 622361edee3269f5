//! Builds the programs of the kit.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::built;

/// A program: its name in the kit, and the file that cargo built.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) file: PathBuf,
}

/// Names in the kit, with the kind and name of each cargo target.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("disco", "bin", "disco"),
    ("digits", "example", "digits"),
    ("gpu_evidence", "example", "gpu_evidence"),
    ("nccl_tests", "test", "nccl"),
    ("nccl_bench", "bench", "nccl"),
];

const BUILDS: [&str; 4] = [
    "build --package disco-runtime-cli",
    "build --package disco-runtime --features nccl --example digits --example gpu_evidence",
    "test --package disco-tests --test nccl --no-run",
    "test --package disco-benches --features nccl --bench nccl --no-run",
];

/// Builds the programs.
///
/// # Errors
/// The build fails, or a program is missing.
pub(crate) fn build(is_release: bool) -> Result<Vec<Program>> {
    let release = if is_release { " --release" } else { "" };
    let mut built = Vec::new();
    for build in BUILDS {
        println!("== cargo {build}");
        built.extend(built::build(&format!("{build}{release}"))?);
    }
    let find = |(name, kind, target): (&'static str, &str, &str)| {
        let found = built.iter().find(|built| built.name == target && built.kind == kind);
        let file = found.with_context(|| format!("cargo has built no {kind} {target}"))?.file.clone();
        Ok(Program { name, file })
    };
    PROGRAMS.into_iter().map(find).collect()
}
