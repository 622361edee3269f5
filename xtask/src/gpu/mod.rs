//! The GPU evidence kit, which tests on a GPU the properties that the test double can't show: programs, libraries and scripts in one
//! folder, for a machine with one GPU and without Rust and network.
//!
//! ```text
//! bundle     builds and packs the folder
//! rehearsal  runs the script on the test double
//! programs   the programs of the kit
//! fatbin     machine code in a library of CUDA kernels
//! ```

mod bundle;
mod fatbin;
mod programs;
mod rehearsal;

pub(crate) use bundle::bundle;
pub(crate) use rehearsal::rehearse;

/// The folder of the scripts.
const SCRIPTS_FOLDER: &str = "testing/scripts";
/// The script, and the files that it reads and runs in addition to the programs.
const SCRIPTS: [&str; 7] = [
    "gpu-evidence.sh",
    "gpu-steps.sh",
    "gpu-models.sh",
    "gpu_models.py",
    "gpu_generate.py",
    "gpu_python.py",
    "torch_compare.py",
];
