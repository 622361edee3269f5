//! Benchmarks of calls and records.

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

mod common;
mod ffi;
mod issue;
mod records;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(&[("issue", issue::main), ("ffi", ffi::main), ("records", records::main)])
}
