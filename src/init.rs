//! Programs that are their own workers.

use std::io::{self, Write as _};
use std::process;

use disco_channel::processes::Invitation;

use crate::role;

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
        invitation.and_then(|invitation| role::serve(&invitation))
    } else if let Some(options) = crate::node::options() {
        options.and_then(|options| crate::node::join(&options))
    } else {
        role::be_program();
        #[cfg(feature = "mpi")]
        crate::launched::enter();
        return;
    };
    if let Err(error) = &served {
        _ = writeln!(io::stderr(), "disco: {error}");
    }
    process::exit(i32::from(served.is_err()));
}
