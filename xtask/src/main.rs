//! Disco's developer commands: `cargo xtask check` is the gate, `cargo xtask test` runs the tests.

mod built;
mod fuzzing;
mod gpu;
mod guide;
mod libraries;
mod modules;
mod run;
mod steps;
mod test_programs;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Developer commands of Disco.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
enum Command {
    /// The gate: format, clippy, tests and documentation, as CI runs it
    Check,
    /// The tests: every crate and feature on its own, all tests together, documentation tests, examples
    Test {
        /// Also the loom models, the tests under AddressSanitizer, ten minutes of random sessions, the GPU evidence kit on the test
        /// double, a minute of each fuzz target, cargo-deny, and a build of each package as it would be published
        #[arg(long)]
        long: bool,
    },
    /// The GPU evidence kit: programs, two versions of NCCL and `gpu-evidence.sh`, packed for a machine with a GPU that has no Rust
    /// and no network
    GpuBundle {
        /// The folder that is made, in place of one that is there
        #[arg(default_value = "target/gpu-bundle")]
        folder: PathBuf,
    },
    /// The guide as a book in `target/book`, without warnings: its links, chapters and variables are checked first
    Book,
    /// Licences and sources of all dependencies, by cargo-deny
    Deny,
    /// Fails on a cycle between the modules of a crate, which the gate does not take
    Modules,
    /// All test programs, several at a time
    Programs,
    /// All parts of `gpu-evidence.sh` on the test double, with small sizes and counts
    GpuRehearsal,
}

fn main() -> ExitCode {
    match Command::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // By hand, so that it is the last line also where RUST_BACKTRACE is set.
            eprintln!("== {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(self) -> anyhow::Result<()> {
        let steps = match self {
            Self::GpuBundle { folder } => return gpu::bundle(&folder),
            Self::Book => return tools::book(),
            Self::Deny => return tools::deny(),
            Self::Modules => return modules::check(),
            Self::Programs => return test_programs::run(),
            Self::GpuRehearsal => return gpu::rehearse(),
            Self::Check => [steps::lints(), fuzzing::lints(), steps::tests(), steps::documentation()].concat(),
            Self::Test { long: false } => steps::tests(),
            Self::Test { long: true } => [steps::tests(), steps::long_tests(), fuzzing::long_tests()].concat(),
        };
        libraries::fetch(matches!(self, Self::Test { long: true }));
        run::all(&steps)
    }
}
