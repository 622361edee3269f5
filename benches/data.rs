//! Benchmarks of collectives.

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

mod collective;
mod common;
#[cfg(feature = "mpi")]
mod mpi;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(&[
        ("collective", collective::main),
        #[cfg(feature = "mpi")]
        ("mpi", mpi::main),
    ])
}
