//! Disco's developer commands. `cargo xtask check` is the gate; `cargo xtask test` runs the tests that need only Rust.

mod built;
mod clients;
mod compare;
mod crates;
mod cuda;
mod examples;
mod fast;
mod fuzzing;
mod gpu;
mod groups;
mod guide;
mod libraries;
mod models;
mod modules;
mod python;
mod run;
mod sleeps;
mod steps;
mod table;
mod test_programs;
mod time_limit;
mod tools;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use groups::Group;

/// Developer commands of Disco.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
enum Command {
    /// Run the gate, as CI does: format, clippy, tests and documentation
    Check {
        /// Only format, clippy, and the tests of the packages that a change touches and of those that depend on them
        #[arg(long)]
        fast: bool,
        /// With --fast: the branch or commit since which files count as changed
        #[arg(long, default_value = "main", requires = "fast")]
        since: String,
    },
    /// Run the tests of the product that need nothing but Rust, and name the tests that this leaves out
    Test {
        /// Run all tests and examples, and also the loom models, tests under AddressSanitizer, ten minutes of random sessions, half an hour of requests
        /// to `disco-serve`, the GPU evidence kit on the test double, a minute of each fuzz target and cargo-deny, compile
        /// `disco-models` for CUDA, and build each package as it would be published
        #[arg(long)]
        long: bool,
    },
    /// Pack the GPU evidence kit (programs, NCCL and `gpu-evidence.sh`) for a machine with a GPU but
    /// without Rust and network
    GpuBundle {
        /// Folder to create; an existing one is replaced
        #[arg(default_value = "target/gpu-bundle")]
        folder: PathBuf,
    },
    /// Compile `disco-candle`, `disco-models` and their examples `attention` and `generate` for CUDA, with nvcc from wheels,
    /// in `target/cuda`
    Cuda,
    /// Fetch language models for examples and tests into the cache folder, and print the paths of their files
    Fetch {
        /// Models to fetch
        #[arg(required = true)]
        models: Vec<models::Model>,
    },
    /// Fetch the Python clients of the long tests of `disco-serve` into the cache folder
    FetchClients,
    /// Check the guide's links, chapters and variables, and build it as a book in `target/book`; warnings are errors
    Book,
    /// Check the licences and sources of all dependencies with cargo-deny
    Deny,
    /// Check that the modules of each crate have no cycle
    Modules,
    /// Count the crates that users build, and compare the numbers with their limits
    Crates,
    /// Count the sleeps of tests, and compare their number with its limit
    Sleeps,
    /// Compare calls and syncs with those of an earlier commit
    Compare(compare::Compare),
    /// Check the types and stubs of the Python package, and run its tests
    Python(python::Python),
    /// Run test programs and examples, several at a time: all of them, or those of a group or of some packages
    Programs(test_programs::Selection),
    /// Run all parts of `gpu-evidence.sh` without a GPU, on the test double and the CPU, with small sizes and counts
    GpuRehearsal,
}

fn main() -> ExitCode {
    match Command::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Printed here, because with RUST_BACKTRACE `main` would print a backtrace after it.
            eprintln!("== {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(self) -> anyhow::Result<()> {
        let is_long = matches!(self, Self::Test { long: true });
        let steps = match self {
            Self::GpuBundle { folder } => return gpu::bundle(&folder),
            Self::Cuda => return cuda::check(),
            Self::Fetch { models } => return models::fetch(&models),
            Self::FetchClients => return clients::fetch(),
            Self::Book => return tools::book(),
            Self::Deny => return tools::deny(),
            Self::Crates => return crates::check(),
            Self::Modules => return modules::check(),
            Self::Sleeps => return sleeps::check(),
            Self::Compare(compare) => return compare.run(),
            Self::Python(python) => return python.run(),
            Self::Programs(selection) => {
                if selection.group.is_some_and(|group| group != Group::Product) {
                    libraries::fetch(false);
                }
                return test_programs::run(&selection);
            }
            Self::GpuRehearsal => return gpu::rehearse(),
            Self::Check { fast: true, since } => fast::steps(&since)?,
            Self::Check { fast: false, .. } => {
                [fuzzing::lints(), steps::lints(), steps::alone()?, steps::documentation()?, steps::programs()].concat()
            }
            Self::Test { long: false } => {
                run::all(&steps::product())?;
                groups::print_elsewhere();
                return Ok(());
            }
            Self::Test { long: true } => {
                [steps::alone()?, steps::programs(), steps::long_tests()?, fuzzing::long_tests()?].concat()
            }
        };
        libraries::fetch(is_long);
        run::all(&steps)
    }
}
