//! Sessions of processes: start, values, output, and the errors after the loss of a worker.
//!
//! Tests execute this program again as workers, and as other programs (see `programs`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod at_once;
mod death;
mod functions;
mod invited;
mod life;
mod matching;
mod mpi;
mod nccl;
mod programs;
mod replace;
mod replies;
mod resize;
mod spares;
mod start;
#[path = "../terminal/mod.rs"]
mod terminal;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(code) = programs::run() {
        return code;
    }
    disco::init();
    let mut arguments = Arguments::from_args();
    // One test at a time, because tests count this process's children and descriptors.
    arguments.test_threads = Some(1);
    let tests = [
        at_once::tests(),
        death::tests(),
        invited::tests(),
        life::tests(),
        matching::tests(),
        replace::tests(),
        replies::tests(),
        resize::tests(),
        spares::tests(),
        start::tests(),
        mpi::tests(),
        nccl::tests(),
    ];
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

/// The text of an error without the table of the workers' operations, which may follow.
fn first_line(error: &disco::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
