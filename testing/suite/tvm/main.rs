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
mod worker;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(code) = pipes::serve() {
        return code;
    }
    disco::init();
    let mut arguments = Arguments::from_args();
    // A process of TVM takes a processor for two seconds to start.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(2).min(2));
    let tests = [controller::tests(), pipes::tests(), sockets::tests(), worker::tests()];
    let trials = tests.into_iter().flatten().map(|(name, test)| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// Tests by name.
type Tests = Vec<(&'static str, fn())>;

/// Names tests after their functions.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn tests() -> crate::Tests {
            vec![$((stringify!($name), $name as fn())),*]
        }
    };
}
pub(crate) use tests;
