//! Programs that are their own workers.

use std::process;
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

/// Serves as a worker or as a node if this process was started as one, and then ends it; else returns at once.
///
/// A session of processes starts its program once more for each worker. So a program that makes one calls this first thing
/// in `main`, before it reads arguments, prints or starts threads:
///
/// ```no_run
/// # #![allow(clippy::needless_doctest_main)]
/// use disco::{Builder, Session};
///
/// fn main() -> disco::Result<()> {
///     disco::init();
///     let session = Builder::processes(4).start()?;
///     // …
///     disco::block_on(session.shutdown())
/// }
/// ```
///
/// With `DISCO_CONNECT`, a program is a node of the session there, as `disco worker` makes it.
///
/// The exit status of a worker or a node is 0 after a shutdown, and 1 when it ends for another reason, which it prints.
pub fn init() {
    let served = if let Some(invitation) = Invitation::take() {
        invitation.and_then(|invitation| serve(&invitation))
    } else if let Some(options) = crate::node::options() {
        options.and_then(|options| crate::node::join(&options))
    } else {
        ROLE.get_or_init(|| Role::Program);
        #[cfg(feature = "mpi")]
        crate::ranks::enter();
        return;
    };
    if let Err(error) = &served {
        eprintln!("disco: {error}");
    }
    process::exit(i32::from(served.is_err()));
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
/// It is a worker itself, or does not call [`init`].
pub(crate) fn check() -> Result<()> {
    if Invitation::is_there() {
        return Err(Error::invalid(
            "this process was started as a worker, and makes a session of processes itself: call `disco::init()` first \
             thing in `main`",
        ));
    }
    match ROLE.get() {
        Some(Role::Program) => Ok(()),
        Some(Role::Worker) => Err(Error::invalid("a worker can't make a session of processes")),
        None => Err(Error::invalid(
            "a session of processes starts this program again for each worker: call `disco::init()` first thing in `main`",
        )),
    }
}
