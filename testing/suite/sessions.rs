//! Sessions of all kinds, in modules with shared helpers. `cargo test -p disco-tests --test sessions nodes::` runs one.
//!
//! Tests execute this program again as workers and nodes, and as other programs (see `programs` of `nodes` and
//! `processes`). Each module has its own number of tests at a time; see `modules`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod kinds;
mod launchers;
mod leftovers;
mod modules;
mod nodes;
mod processes;
mod soak;
mod spans;
mod subsets;
mod tvm;
mod with_session;
mod workers;

use std::process::ExitCode;

use disco_testing::{terminal, trials};

fn main() -> ExitCode {
    let programs =
        [nodes::programs::run, processes::programs::run, launchers::program::run, tvm::serve, soak::run, spans::run];
    if let Some(code) = programs.into_iter().find_map(|run| run()) {
        return code;
    }
    disco::init();
    modules::run([
        kinds::module(),
        launchers::module(),
        nodes::module(),
        processes::module(),
        soak::module(),
        spans::module(),
        subsets::module(),
        tvm::module(),
    ])
}
