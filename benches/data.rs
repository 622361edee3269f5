//! Benchmarks of collectives.

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

mod collective;
mod common;
mod decode;
#[cfg(feature = "mpi")]
mod mpi;
mod processes;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(&[
        ("collective", collective::main),
        ("processes", processes::main),
        ("decode", decode::main),
        #[cfg(feature = "mpi")]
        ("mpi", mpi::main),
    ])
}
