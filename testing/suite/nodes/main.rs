//! Sessions of nodes: start, handshake, and the errors after the loss of a node, a link or the controller.
//!
//! Tests execute this program again as nodes and workers, and as other programs (see `programs`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod ahead;
mod attack;
mod by_store;
mod death;
mod functions;
mod handshake;
mod life;
mod link;
mod programs;
mod replace;
mod resize;
mod spares;
mod start;
mod status;
#[path = "../terminal/mod.rs"]
mod terminal;
mod tree;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(code) = programs::run() {
        return code;
    }
    disco::init();
    let mut arguments = Arguments::from_args();
    // Few at a time: tests mostly wait, but under more load nodes would miss their deadlines.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(3).min(3));
    let tests = [
        life::tests(),
        start::tests(),
        status::tests(),
        handshake::tests(),
        attack::tests(),
        link::tests(),
        ahead::tests(),
        death::tests(),
        tree::tests(),
        replace::tests(),
        resize::tests(),
        spares::tests(),
    ];
    let tests = tests.into_iter().flatten();
    let trials = tests.map(|(name, test)| {
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

/// The text of an error without the table of the workers' operations, which may follow.
fn first_line(error: &disco::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
