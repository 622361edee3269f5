//! This process's side of being a rank that an MPI launcher has started.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};
use std::thread;
use std::time::{Duration, Instant};

use disco_channel::nodes::{JoinOptions, Token};
use disco_channel::processes::Invitation;
use disco_core::env::Variable;
use disco_core::error::LossCause;
use disco_core::{Error, Result};
use disco_mpi::{Host, NodeInvitation, SessionInvitation};

use crate::Settings;
use crate::remote::ranks;

/// Time that sessions get to end after rank 0 has ended.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Takes the role that MPI's launcher gave this process, and returns whether it is rank 0 of several. Other ranks serve
/// the sessions of rank 0, and exit when it ends.
pub(crate) fn become_rank() -> bool {
    let backend = Variable::read("DISCO_BACKEND");
    let backend = backend.text().unwrap_or_default();
    // The launcher's ranks are ranks of MPI only if the backend may be MPI, and the workers may be ranks.
    if backend.is_some_and(|name| name != "mpi") || crate::remote::tasks::are_alone() {
        return false;
    }
    if let Err(error) = restart_under_launcher() {
        tracing::warn!(%error, "this program could not be restarted under MPI's launcher");
    }
    let ended = match Host::enter() {
        Ok(None) => return false,
        Ok(Some(host)) if host.rank() == 0 => {
            ranks::set_world(host);
            return true;
        }
        // The launcher may not be MPI's. A session with backend `mpi` gets the reason as an error.
        Err(Error::Unavailable(_)) => return false,
        // MPI sees one rank: the launcher was not told to start MPI, as `srun` without `--mpi`.
        Err(error @ Error::Invalid(_)) if backend.is_none() => {
            tracing::debug!(%error, "the launcher's tasks are not ranks of MPI");
            return false;
        }
        Ok(Some(host)) => serve(host),
        Err(error) => Err(error),
    };
    if let Err(error) = &ended {
        disco_core::tell(format_args!("disco: {error}"));
    }
    process::exit(i32::from(ended.is_err()));
}

/// Replaces this process by MPI's launcher with this program, as `disco run` does, if the environment asks for several
/// workers over an MPI that needs its launcher. Returns otherwise.
///
/// # Errors
/// The settings are invalid, or the launcher can't be executed.
fn restart_under_launcher() -> Result<()> {
    let settings = Settings::current()?;
    let is_due = settings.backend == "mpi" && settings.nodes == 1;
    if is_due { restart_under(settings.workers, settings.apart, disco_mpi::launcher) } else { Ok(()) }
}

/// Replaces this process by MPI's launcher with this program, unless it runs under one: each session of the program over
/// MPI has `workers` workers, and is `apart` or not. Returns if the sessions need no launcher.
///
/// # Errors
/// There is no MPI library, or the launcher can't be executed.
#[doc(hidden)]
pub fn restart_under_mpi(workers: usize, apart: bool, has_several_sessions: bool) -> Result<()> {
    let one = disco_mpi::launcher as fn(usize) -> _;
    // If worker 0 is a process of its own, each session has new processes, and a process initialises MPI once.
    let has_several = has_several_sessions && !apart;
    restart_under(workers, apart, if has_several { disco_mpi::launcher_of_sessions } else { one })
}

fn restart_under(workers: usize, apart: bool, launcher: fn(usize) -> Result<Vec<OsString>>) -> Result<()> {
    if workers == 1 || disco_mpi::is_launched() {
        return Ok(());
    }
    let launcher = launcher(ranks::needed(workers, apart))?;
    let [program, options @ ..] = &launcher[..] else { return Ok(()) };
    let failed = |error| Error::system(format!("mpi: `{}` can't be run", program.display()), error);
    let this = env::current_exe().map_err(failed)?;
    Err(failed(Command::new(program).args(options).arg(this).args(env::args_os().skip(1)).exec()))
}

/// Serves the sessions of rank 0 until it ends. Each session has its own thread, because sessions may overlap.
fn serve(host: &Host) -> Result<()> {
    let mut sessions = Vec::new();
    let (rank, name) = (host.rank(), host.name(host.rank()));
    while let Some(invitation) = host.next_invitation()? {
        let name = name.clone();
        sessions.push(thread::spawn(move || {
            let served = match invitation {
                SessionInvitation::Worker(text) => {
                    Invitation::parse(&text).and_then(|invitation| crate::serve(&invitation))
                }
                SessionInvitation::Node(invitation) => join(rank, invitation),
            };
            match served {
                Ok(()) => {}
                // Rank 0 itself tells of the failure.
                Err(Error::Lost(loss)) if matches!(loss.cause, LossCause::ClosedWithReason(_)) => {}
                // Not fatal: the controller has this error, too, and may start another session.
                Err(error) => disco_core::tell(format_args!("disco: {name}: {error}")),
            }
        }));
    }
    // Rank 0 may end in the middle of a session. MPI makes the process of rank 0 wait for this one, so sessions get
    // limited time.
    let end = Instant::now();
    while sessions.iter().any(|session| !session.is_finished()) && end.elapsed() < SHUTDOWN_GRACE {
        thread::sleep(Duration::from_millis(1));
    }
    host.finish()
}

/// Joins a session as the node of this rank.
fn join(rank: usize, invitation: NodeInvitation) -> Result<()> {
    let mut options = JoinOptions::new(invitation.addresses.join(","), Token::new(&invitation.token)?);
    (options.node, options.per_node) = (Some(rank as u32), Some(1));
    options.start = invitation.start;
    crate::join(&options)
}
