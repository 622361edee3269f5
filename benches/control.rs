//! Benchmarks of calls, replies, values and changes of workers.

#![allow(missing_docs, clippy::expect_used, reason = "criterion's macros; a benchmark that fails ends")]

mod common;
mod ffi;
mod issue;
mod records;
mod replacement;
mod results;
mod round_trip;
mod values;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(&[
        ("issue", issue::main),
        ("ffi", ffi::main),
        ("round_trip", round_trip::main),
        ("records", records::main),
        ("results", results::main),
        ("replacement", replacement::main),
        ("values", values::main),
    ])
}
