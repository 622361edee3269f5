//! Ranks that an MPI launcher has started, as workers.

use std::process;
use std::thread;

use disco_channel::processes::{Invitation, Launch};
use disco_core::Error;
use disco_mpi::Host;

/// Makes this process what the launcher meant it to be: returns on rank 0 and where there was none. Other ranks serve one
/// session of rank 0 after the other, and end when it does.
pub(crate) fn enter() {
    // Ranks for another backend are none of ours.
    if std::env::var("DISCO_BACKEND").is_ok_and(|backend| backend != "mpi") {
        return;
    }
    let ended = match Host::enter() {
        Ok(None | Some(_)) if host().is_none_or(|host| host.rank() == 0) => return,
        // A launcher of something else, perhaps. Whoever asks for the backend is told why it is not there.
        Err(Error::Unavailable(_)) => return,
        Ok(_) => host().map_or(Ok(()), serve),
        Err(error) => Err(error),
    };
    if let Err(error) = &ended {
        eprintln!("disco: {error}");
    }
    process::exit(i32::from(ended.is_err()));
}

/// The world that a launcher has made for this process, if it has.
pub(crate) fn host() -> Option<&'static Host> {
    Host::enter().ok().flatten()
}

/// How workers of a session come about here: as ranks that are there, if there are so many.
pub(crate) fn launch(workers: usize) -> Option<Launch> {
    let host = host().filter(|host| host.rank() == 0 && host.size() >= workers)?;
    Some(Launch::elsewhere(|invitation| host.invite(invitation.worker.index(), &invitation.text())))
}

/// Sessions may overlap: each has a thread.
fn serve(host: &Host) -> disco_core::Result<()> {
    thread::scope(|sessions| {
        while let Some(text) = host.next_invitation()? {
            sessions.spawn(move || {
                let served = Invitation::parse(&text).and_then(|invitation| crate::serve(&invitation));
                if let Err(error) = served {
                    // The controller knows, and may start another session.
                    eprintln!("disco: {error}");
                }
            });
        }
        Ok::<_, Error>(())
    })?;
    host.finish()
}
