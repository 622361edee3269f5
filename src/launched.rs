//! This process as a rank that an MPI launcher has started.

use std::env;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};
use std::thread;
use std::time::{Duration, Instant};

use disco_channel::nodes::{JoinOptions, Token};
use disco_channel::processes::Invitation;
use disco_core::env::Variable;
use disco_core::{Error, Result};
use disco_mpi::{Host, Joining, Letter};

use crate::{Settings, ranks};

/// How long sessions may take to end when rank 0 does.
const LINGER: Duration = Duration::from_secs(1);

/// Makes this process what the launcher meant it to be: returns on rank 0 and where there was none. Other ranks serve one
/// session of rank 0 after the other, and end when it does.
pub(crate) fn enter() {
    // Ranks for another backend are none of ours.
    if Variable::read("DISCO_BACKEND").text().is_ok_and(|backend| backend.is_some_and(|name| name != "mpi")) {
        return;
    }
    if let Err(error) = become_ranks() {
        tracing::warn!(%error, "this program is not started again under MPI's launcher");
    }
    let ended = match Host::enter() {
        Ok(None) => return,
        Ok(Some(host)) if host.rank() == 0 => {
            ranks::lead(host);
            return;
        }
        // A launcher of something else, perhaps. Whoever asks for the backend is told why it is not there.
        Err(Error::Unavailable(_)) => return,
        Ok(Some(host)) => serve(host),
        Err(error) => Err(error),
    };
    if let Err(error) = &ended {
        _ = writeln!(io::stderr(), "disco: {error}");
    }
    process::exit(i32::from(ended.is_err()));
}

/// Starts this program again under MPI's launcher, where the environment asks for workers over an MPI that needs one: what
/// `disco run` does. Returns where that is not so, or fails.
fn become_ranks() -> Result<()> {
    let settings = Settings::from_env()?;
    if settings.backend != "mpi" || settings.workers == 1 || settings.nodes > 1 || disco_mpi::is_launched() {
        return Ok(());
    }
    let launcher = disco_mpi::launcher(settings.workers)?;
    let [program, options @ ..] = &launcher[..] else { return Ok(()) };
    let failed = |error| Error::system(format!("mpi: `{}` can't be run", program.display()), error);
    let this = env::current_exe().map_err(failed)?;
    Err(failed(Command::new(program).args(options).arg(this).args(env::args_os().skip(1)).exec()))
}

/// Sessions may overlap: each has a thread.
fn serve(host: &Host) -> Result<()> {
    let mut sessions = Vec::new();
    let (rank, name) = (host.rank(), host.name(host.rank()));
    while let Some(letter) = host.next_letter()? {
        let name = name.clone();
        sessions.push(thread::spawn(move || {
            let served = match letter {
                Letter::Invitation(text) => Invitation::parse(&text).and_then(|invitation| crate::serve(&invitation)),
                Letter::Joining(joining) => join(rank, joining),
            };
            if let Err(error) = served {
                // The controller knows, and may start another session.
                _ = writeln!(io::stderr(), "disco: {name}: {error}");
            }
        }));
    }
    // Rank 0 ends, perhaps in the middle of a session, which would go on as long as MPI lets rank 0's process wait for this one.
    let end = Instant::now();
    while sessions.iter().any(|session| !session.is_finished()) && end.elapsed() < LINGER {
        thread::sleep(Duration::from_millis(1));
    }
    host.finish()
}

/// Joins a session as the node of this rank.
fn join(rank: usize, joining: Joining) -> Result<()> {
    let mut options = JoinOptions::new(joining.addresses.join(","), Token::new(&joining.token)?);
    (options.node, options.per_node) = (Some(rank as u32), Some(1));
    options.start = joining.start;
    crate::join(&options)
}
