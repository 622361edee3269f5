//! What this process is: a program that makes sessions, or a worker.

use std::sync::OnceLock;

use disco_channel::processes::{self, Invitation};
use disco_core::{Error, Result, worker};

/// What this process is, once it has called [`init`].
static ROLE: OnceLock<Role> = OnceLock::new();

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Program,
    Worker,
}

/// From now on this process is a program, if it is no worker.
pub(crate) fn be_program() {
    ROLE.get_or_init(|| Role::Program);
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

/// Whether this program can be started as a worker.
///
/// # Errors
/// It is a worker itself, or does not call [`init`](crate::init).
pub(crate) fn check() -> Result<()> {
    if Invitation::is_there() {
        return Err(Error::state(
            "this process was started as a worker, and makes a session of processes itself: call `disco::init()` first \
             thing in `main`",
        ));
    }
    match ROLE.get() {
        Some(Role::Program) => Ok(()),
        Some(Role::Worker) => Err(Error::state("a worker can't make a session of processes")),
        None => Err(Error::state(
            "a session of processes starts this program again for each worker: call `disco::init()` first thing in `main`",
        )),
    }
}
