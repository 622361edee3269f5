//! What this process is: a program that makes sessions, or a worker.

use std::env;
use std::ffi::OsString;
use std::sync::OnceLock;

use disco_channel::processes::{self, Invitation, Launch};
use disco_core::{Error, Result, worker};

/// What this process is, once it has called [`init`].
static ROLE: OnceLock<Role> = OnceLock::new();

enum Role {
    Program,
    /// A test program of the standard harness, and a test of it that serves as a worker.
    Test(String),
    Worker,
}

/// From now on this process is a program, if it is no worker.
pub(crate) fn be_program() {
    ROLE.get_or_init(|| Role::Program);
}

/// From now on this process is a test program, of which `test` serves as a worker, if it is nothing else already.
pub(crate) fn be_test(test: String) {
    ROLE.get_or_init(|| Role::Test(test));
}

/// Serves as a worker with an [invitation](crate::Builder::invite) that came by another way than the environment. Returns
/// after the shutdown.
///
/// # Errors
/// The controller is not there or refuses; it is gone; what the worker can't go on after, of which the controller is told.
pub fn serve(invitation: &Invitation) -> Result<()> {
    serve_others();
    processes::serve(invitation, worker::run)
}

/// From now on this process makes no sessions of processes.
pub(crate) fn serve_others() {
    ROLE.get_or_init(|| Role::Worker);
}

/// This program once more, as a worker.
///
/// # Errors
/// As [`check`].
pub(crate) fn launch() -> Result<Launch> {
    check()?;
    Ok(Launch::this_program().args(args()))
}

/// The arguments with which this program is started as a worker or as a node.
pub(crate) fn args() -> Vec<OsString> {
    match ROLE.get() {
        // The harness runs this test alone, also if it is ignored, on the main thread, and passes its output on.
        Some(Role::Test(test)) => {
            ["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"].map(OsString::from).into()
        }
        _ => env::args_os().skip(1).collect(),
    }
}

/// Whether this program can be started as a worker.
///
/// # Errors
/// It is a worker itself, or does not call [`init`](crate::init).
pub(crate) fn check() -> Result<()> {
    if Invitation::is_there() {
        return Err(Error::state(
            "this process was started as a worker, and makes a session of processes itself: call `disco::init()` first \
             thing in `main`, or `disco::init_test!()` first thing in a test",
        ));
    }
    match ROLE.get() {
        Some(Role::Program | Role::Test(_)) => Ok(()),
        Some(Role::Worker) => Err(Error::state("a worker can't make a session of processes")),
        None => Err(Error::state(
            "a session of processes starts this program again for each worker: call `disco::init()` first thing in \
             `main`; in a `#[test]`, write `disco::init_test!();` as its first line",
        )),
    }
}
