//! Runs all parts of the script on the test double, with small sizes and counts, so that the kit keeps working.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{SCRIPTS_FOLDER, programs};
use crate::built::root;
use crate::libraries;

/// The parts of the script.
const PARTS: [&str; 5] = ["0", "1", "2", "3", "4"];

/// Names under which loaders look for the libraries that the double replaces.
const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnccl.so.2", "libnvidia-ml.so.1"];

/// Builds the programs without optimization, and runs the parts.
///
/// # Errors
/// A build or a part fails.
pub(crate) fn rehearse() -> Result<()> {
    let programs = programs::build(false)?;
    let folder = env::temp_dir().join(format!("disco-gpu-rehearsal-{}", std::process::id()));
    let rehearsed = Rehearsal { folder: &folder, programs: &programs }.run();
    // The results of a failed rehearsal are kept.
    if rehearsed.is_ok() {
        fs::remove_dir_all(&folder)?;
    }
    rehearsed.with_context(|| format!("{} has what the steps have printed", folder.display()))
}

struct Rehearsal<'a> {
    folder: &'a Path,
    programs: &'a [programs::Program],
}

impl Rehearsal<'_> {
    fn run(&self) -> Result<()> {
        let [bin, double] = ["bin", "double"].map(|name| self.folder.join(name));
        fs::create_dir_all(&bin)?;
        fs::create_dir_all(&double)?;
        programs::copy_python(&bin)?;
        for program in self.programs {
            symlink(&program.file, bin.join(program.name))?;
        }
        let object = self.object()?;
        NAMES.into_iter().try_for_each(|name| symlink(&object, double.join(name)))?;
        for part in PARTS {
            let start = Instant::now();
            let status = self.part(part, &double).status().context("bash can't be started")?;
            ensure!(status.success(), "part {part} of the GPU evidence kit: {status}");
            println!("== part {part} rehearsed in {:.0} s", start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Path of the double's shared object, which cargo builds with the tests.
    fn object(&self) -> Result<PathBuf> {
        let mut folders = self.programs.iter().flat_map(|program| program.file.ancestors().skip(1).take(2));
        let object = folders.find_map(|folder| {
            let object = folder.join("libdisco_gpu_double.so");
            object.is_file().then_some(object)
        });
        object.context("cargo has built no libdisco_gpu_double.so beside the tests")
    }

    fn part(&self, part: &str, double: &Path) -> Command {
        let mut command = Command::new("bash");
        command.arg(root().join(SCRIPTS_FOLDER).join("gpu-evidence.sh")).arg(part);
        command.env("GPU_EVIDENCE_QUICK", "1").env("BUDGET", "1800").env("LD_LIBRARY_PATH", double);
        // The folder is the script's working folder, which has the programs.
        command.env("W", self.folder).env("OUT", self.folder.join("out"));
        for library in ["SYS_NCCL", "NCCL_SHARED"] {
            command.env(library, double.join("libnccl.so.2"));
        }
        command.env("NVRTC", libraries::nvrtc());
        command.env("GPU_DOUBLE_DEVICES", "1").env("GPU_DOUBLE_NCCL_VERSION", "23007");
        command
    }
}
