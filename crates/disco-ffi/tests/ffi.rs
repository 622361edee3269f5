//! Libraries and compiled models on workers. Tests execute this program again: each in a process of its own, and as workers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

#[path = "sessions/library.rs"]
mod library;
mod models;
mod sessions;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    sessions::open_libtvm_ffi();
    disco::init();
    let arguments = Arguments::from_args();
    libtest_mimic::run(&arguments, sessions::trials().chain(models::trials()).collect()).exit_code()
}

/// An error's text without the numbers of its command and register.
fn without_numbers(text: &str) -> String {
    match (text.find(" (command "), text.find("): ")) {
        (Some(start), Some(end)) => format!("{}{}", &text[..start], &text[end + 1..]),
        _ => text.to_owned(),
    }
}
