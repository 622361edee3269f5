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
    // Few at a time: tests mostly wait, but under more load nodes would miss their deadlines.
    trials::run_named(tests.into_iter().flatten(), Some(3))
}

/// The text of an error without the table of the workers' operations, which may follow.
fn first_line(error: &disco::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
