//! Sessions of processes: start, values, output, and the errors after the loss of a worker.
//!
//! Tests execute this program again as workers, and as other programs (see `programs`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod at_once;
mod death;
mod forked;
mod functions;
mod invited;
mod life;
mod matching;
mod memory;
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
#[path = "../trials/mod.rs"]
mod trials;
#[path = "../with_session/mod.rs"]
mod with_session;
#[path = "../workers/mod.rs"]
mod workers;

use std::process::ExitCode;

pub(crate) use trials::tests;

fn main() -> ExitCode {
    if let Some(code) = programs::run() {
        return code;
    }
    disco::init();
    let tests = [
        at_once::tests(),
        death::tests(),
        forked::tests(),
        invited::tests(),
        life::tests(),
        matching::tests(),
        memory::tests(),
        replace::tests(),
        replies::tests(),
        resize::tests(),
        spares::tests(),
        start::tests(),
        mpi::tests(),
        nccl::tests(),
    ];
    // One test at a time, because tests count this process's children and descriptors.
    trials::run_named(tests.into_iter().flatten(), Some(1))
}

/// The text of an error without the table of the workers' operations, which may follow.
fn first_line(error: &disco::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
