//! The controller's side of ranks that an MPI launcher has started: they become workers of this process's sessions.

use std::sync::OnceLock;
use std::time::Duration;

use disco_channel::nodes::{Announce, Token};
use disco_channel::processes::Launch;
use disco_core::{Error, Result};
use disco_mpi::{Host, NodeInvitation, SessionInvitation};

use crate::SessionKind;

/// The MPI world whose rank 0 this process is; unset without a launcher.
static WORLD: OnceLock<&'static Host> = OnceLock::new();

/// Makes the ranks of `world` available to sessions.
pub(crate) fn set_world(world: &'static Host) {
    WORLD.get_or_init(|| world);
}

/// The first `workers` ranks of a launcher's world, as the workers of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranks {
    world: &'static Host,
    workers: usize,
}

/// Number of ranks of the world, if this process is its rank 0.
pub(crate) fn count() -> Option<usize> {
    WORLD.get().map(|world| world.size())
}

/// The ranks for a session of this kind, or `None` without a launcher or for a session of threads.
///
/// # Errors
/// The launcher has started fewer ranks than the session has workers.
pub(crate) fn of_session(kind: SessionKind, workers: usize) -> Result<Option<Ranks>> {
    let Some(&world) = WORLD.get().filter(|_| kind != SessionKind::Threads) else { return Ok(None) };
    if world.size() < workers {
        return Err(Error::invalid(format!(
            "MPI's launcher has started {} ranks, but the session has {workers} workers: start at least {workers} ranks, or set \
             DISCO_BACKEND to a backend other than mpi",
            world.size()
        )));
    }
    Ok(Some(Ranks { world, workers }))
}

impl Ranks {
    /// Number of machines that the ranks run on.
    pub(crate) fn machines(self) -> usize {
        self.world.machines(self.workers)
    }

    /// Launches the ranks as worker processes of this machine. Each rank gets its invitation by an MPI message, within
    /// `limit`.
    pub(crate) fn launch(self, limit: Duration) -> Launch {
        Launch::elsewhere(move |invitation| {
            self.world.send(invitation.worker.index(), SessionInvitation::Worker(invitation.text()), limit)
        })
        .only_once()
    }

    /// Names of the ranks that join as nodes, from rank 1 on.
    pub(crate) fn names(self) -> Vec<String> {
        (1..self.workers).map(|rank| self.world.name(rank)).collect()
    }

    /// Announces the session to the ranks, which join as nodes: sends them addresses and token by MPI. The message and
    /// the join may take `limit` each.
    pub(crate) fn announce(self, token: &Token, limit: Duration) -> Announce {
        let token = token.text();
        Announce::new(move |announcement| {
            let invitation = NodeInvitation::new(token.clone(), limit, announcement.addresses());
            let send = |rank| self.world.send(rank, SessionInvitation::Node(invitation.clone()), limit);
            (1..self.workers).try_for_each(send)
        })
        .only_once()
    }
}
