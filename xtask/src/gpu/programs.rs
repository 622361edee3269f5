//! Builds the programs of the kit.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::built::root;
use crate::{built, cuda};

/// A program: its name in the kit, and the file that cargo built.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) file: PathBuf,
}

/// Names in the kit, with the kind and name of each cargo target.
const PROGRAMS: [(&str, &str, &str); 7] = [
    ("disco", "bin", "disco"),
    ("digits", "example", "digits"),
    ("gpu_evidence", "example", "gpu_evidence"),
    ("nccl_tests", "test", "nccl"),
    ("nccl_bench", "bench", "nccl"),
    ("attention", "example", "attention"),
    ("generate", "example", "generate"),
];

const BUILDS: [&str; 5] = [
    "build --package disco-python",
    "build --package disco-runtime-cli",
    "build --package disco-runtime --features nccl --example digits --example gpu_evidence",
    "test --package disco-tests --test nccl --no-run",
    "test --package disco-benches --features nccl --bench nccl --no-run",
];

/// The sources of the Python package.
const PYTHON: &str = "crates/disco-python/python/disco";

/// Copies the sources of the Python package beside its native part.
///
/// # Errors
/// A file can't be copied.
pub(crate) fn copy_python(bin: &Path) -> Result<()> {
    let folder = bin.join("python/disco");
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(root().join(PYTHON))? {
        let file = entry?.path();
        if let (Some(name), Some("py")) = (file.file_name(), file.extension().and_then(|end| end.to_str())) {
            fs::copy(&file, folder.join(name))?;
        }
    }
    Ok(())
}

/// The examples that a kit has for CUDA, for the CPU.
const ON_CPU: [&str; 2] =
    ["build --package disco-candle --example attention", "build --package disco-models --example generate"];

/// Builds the programs: optimized and with `attention` and `generate` for CUDA, or for a rehearsal on the CPU.
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
    if is_release {
        built.extend(cuda::examples()?);
    } else {
        for build in ON_CPU {
            built.extend(built::build(build)?);
        }
    }
    let find = |(name, kind, target): (&'static str, &str, &str)| {
        let found = built.iter().find(|built| built.name == target && built.kind == kind);
        let file = found.with_context(|| format!("cargo has built no {kind} {target}"))?.file.clone();
        Ok(Program { name, file })
    };
    let mut programs = PROGRAMS.into_iter().map(find).collect::<Result<Vec<_>>>()?;
    // The native part of the Python package, which is no program.
    let file = programs[0].file.with_file_name("lib_disco.so");
    programs.push(Program { name: "python/disco/_disco.abi3.so", file });
    Ok(programs)
}
