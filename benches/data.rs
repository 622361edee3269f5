//! Benchmarks of collectives.

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

mod collective;
mod common;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(&[("collective", collective::main)])
}
