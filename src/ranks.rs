//! Ranks that an MPI launcher has started, as workers.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use disco_channel::nodes::{Announce, JoinOptions, Token};
use disco_channel::processes::{Invitation, Launch};
use disco_core::{Error, Result};
use disco_mpi::{Host, Joining, Letter};

use crate::{SessionKind, Settings};

/// The world whose rank 0 this process is, if a launcher has made one.
static WORLD: OnceLock<&'static Host> = OnceLock::new();

/// How long sessions may take to end when rank 0 does.
const LINGER: Duration = Duration::from_secs(1);

/// Makes this process what the launcher meant it to be: returns on rank 0 and where there was none. Other ranks serve one
/// session of rank 0 after the other, and end when it does.
pub(crate) fn enter() {
    // Ranks for another backend are none of ours.
    if env::var("DISCO_BACKEND").is_ok_and(|backend| backend != "mpi") {
        return;
    }
    if let Err(error) = become_ranks() {
        tracing::warn!(%error, "this program is not started again under MPI's launcher");
    }
    let ended = match Host::enter() {
        Ok(None) => return,
        Ok(Some(host)) if host.rank() == 0 => {
            WORLD.get_or_init(|| host);
            return;
        }
        // A launcher of something else, perhaps. Whoever asks for the backend is told why it is not there.
        Err(Error::Unavailable(_)) => return,
        Ok(Some(host)) => serve(host),
        Err(error) => Err(error),
    };
    if let Err(error) = &ended {
        eprintln!("disco: {error}");
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

/// Ranks that a launcher has started, of which a session takes the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranks {
    world: &'static Host,
    workers: usize,
}

/// The ranks of a session of this kind, if a launcher has started some.
///
/// # Errors
/// They are too few.
pub(crate) fn of_session(kind: SessionKind, workers: usize) -> Result<Option<Ranks>> {
    let Some(&world) = WORLD.get().filter(|_| kind != SessionKind::Threads) else { return Ok(None) };
    if world.size() < workers {
        return Err(Error::invalid(format!(
            "MPI's launcher has started {} ranks, and the session has {workers} workers: start as many ranks, or set \
             DISCO_BACKEND to another backend, whose workers need none",
            world.size()
        )));
    }
    Ok(Some(Ranks { world, workers }))
}

impl Ranks {
    /// On how many machines they are.
    pub(crate) fn machines(self) -> usize {
        self.world.machines(self.workers)
    }

    /// They serve as processes of this machine; a letter may take so long.
    pub(crate) fn launch(self, limit: Duration) -> Launch {
        Launch::elsewhere(move |invitation| {
            self.world.send(invitation.worker.index(), Letter::Invitation(invitation.text()), limit)
        })
    }

    /// What those are called that join.
    pub(crate) fn names(self) -> Vec<String> {
        (1..self.workers).map(|rank| self.world.name(rank)).collect()
    }

    /// They are told by MPI where to join as nodes, and the token; that and joining may each take so long.
    pub(crate) fn announce(self, token: &Token, limit: Duration) -> Announce {
        let token = token.text();
        Announce::new(move |announcement| {
            let joining = Joining::new(token.clone(), limit, announcement.addresses());
            let send = |rank| self.world.send(rank, Letter::Joining(joining.clone()), limit);
            (1..self.workers).try_for_each(send)
        })
    }
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
                eprintln!("disco: {name}: {error}");
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
