//! The kit that shows on a machine with one GPU what the test double can't: programs, libraries and a script in one folder, for a
//! machine that has no Rust and no network.
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

/// The script, and what it starts beside the programs.
const SCRIPTS: [&str; 2] = ["gpu-evidence.sh", "torch_compare.py"];

/// The script's parts, each for one loan of a GPU.
const PARTS: [&str; 3] = ["1", "2", "3"];
