//! Sessions with TVM's Disco: the real one from PyPI in both directions, and without it, both of our ends.
//!
//! Tests execute this program again as workers and nodes of TVM's sessions, or of a lane of TVM.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod controller;
mod functions;
mod pipes;
mod python;
mod sockets;
#[path = "../trials/mod.rs"]
mod trials;
mod worker;

use std::process::ExitCode;

pub(crate) use trials::tests;

fn main() -> ExitCode {
    if let Some(code) = pipes::serve() {
        return code;
    }
    disco::init();
    let tests = [controller::tests(), pipes::tests(), sockets::tests(), worker::tests()];
    // A process of TVM takes a processor for two seconds to start.
    trials::run_named(tests.into_iter().flatten(), Some(2))
}
