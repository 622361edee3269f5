//! The `disco` command, except over MPI.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod commands;
#[cfg(any(feature = "nccl", feature = "rccl"))]
mod gpus;
mod nodes;
#[cfg(feature = "local")]
mod own_backend;
#[cfg(feature = "local")]
mod status;

use std::env;
use std::process::ExitCode;

use disco_testing::trials;

/// Environment variable that makes this executable run another `main`: its name, or the kinds of sessions of
/// [`status::program`].
const PROGRAM: &str = "DISCO_TEST_PROGRAM";

fn main() -> ExitCode {
    // Nodes and workers that the program starts inherit its environment.
    if let Ok(program) = env::var(PROGRAM) {
        return run(&program);
    }
    let tests = commands::all().chain(nodes::all());
    #[cfg(any(feature = "nccl", feature = "rccl"))]
    let tests = tests.chain(gpus::all());
    #[cfg(feature = "local")]
    let tests = tests.chain(own_backend::tests()).chain(status::all());
    trials::run_named(tests, None)
}

fn run(program: &str) -> ExitCode {
    let found = nodes::run(program);
    #[cfg(feature = "local")]
    let found = found.or_else(|| own_backend::main(program)).or_else(|| Some(status::program::main(program)));
    found.unwrap()
}
