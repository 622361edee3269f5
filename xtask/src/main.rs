//! Disco's developer commands: `cargo xtask check` is the gate, `cargo xtask test` runs the tests.

mod fuzzing;
mod libraries;
mod run;
mod steps;

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
        /// Also the loom models, the tests under AddressSanitizer, ten minutes of random sessions, and a minute of each fuzz target; each has a target folder
        /// of its own
        #[arg(long)]
        long: bool,
    },
}

fn main() -> ExitCode {
    let command = Command::parse();
    libraries::fetch(matches!(command, Command::Test { long: true }));
    let steps = match command {
        Command::Check => [steps::lints(), fuzzing::lints(), steps::tests(), steps::documentation()].concat(),
        Command::Test { long: false } => steps::tests(),
        Command::Test { long: true } => [steps::tests(), steps::long_tests(), fuzzing::long_tests()].concat(),
    };
    match run::all(&steps) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // By hand, so that it is the last line also where RUST_BACKTRACE is set.
            eprintln!("== {error:#}");
            ExitCode::FAILURE
        }
    }
}
