//! The controller's side of ranks that an MPI launcher has started: they become workers of this process's sessions.

use std::ops::Range;
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

/// Ranks of a launcher's world, as the workers of a session.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    world: &'static Host,
    /// The ranks of the workers: from 0, or from 1 if worker 0 is a process of its own.
    workers: Range<usize>,
}

/// Number of ranks of the world, if this process is its rank 0.
pub(crate) fn count() -> Option<usize> {
    WORLD.get().map(|world| world.size())
}

/// Number of ranks that a session of `workers` workers needs. Rank 0 is the controller, and has worker 0 unless the session
/// is `apart`.
pub(crate) fn needed(workers: usize, apart: bool) -> usize {
    workers + usize::from(apart)
}

/// The ranks for a session of this kind, or `None` without a launcher or for a session of threads.
///
/// # Errors
/// The launcher has started fewer ranks than the session [needs](needed).
pub(crate) fn of_session(kind: SessionKind, workers: usize, apart: bool) -> Result<Option<Ranks>> {
    let Some(&world) = WORLD.get().filter(|_| kind != SessionKind::Threads) else { return Ok(None) };
    let (size, needed) = (world.size(), needed(workers, apart));
    if size < needed {
        let controller = if apart { " besides rank 0, which is the controller alone" } else { "" };
        return Err(Error::invalid(format!(
            "MPI's launcher has started {size} ranks, but the session has {workers} workers{controller}: start at least {needed} \
             ranks, or set DISCO_BACKEND to a backend other than mpi"
        )));
    }
    Ok(Some(Ranks { world, workers: usize::from(apart)..needed }))
}

impl Ranks {
    /// Whether the ranks run on the controller's machine.
    pub(crate) fn are_here(&self) -> bool {
        self.world.machines(0..self.workers.end) == 1
    }

    /// Number of machines that the ranks run on.
    pub(crate) fn machines(&self) -> usize {
        self.world.machines(self.workers.clone())
    }

    /// Launches the ranks as worker processes of this machine. Each rank gets its invitation by an MPI message, within
    /// `limit`.
    pub(crate) fn launch(self, limit: Duration) -> Launch {
        Launch::elsewhere(move |invitation| {
            let rank = self.workers.start + invitation.worker.index();
            self.world.send(rank, SessionInvitation::Worker(invitation.text()), limit)
        })
        .only_once()
    }

    /// The ranks that join as nodes, each with the number of its rank.
    fn nodes(&self) -> Range<usize> {
        1..self.workers.end
    }

    /// Names of the ranks that join as nodes.
    pub(crate) fn names(&self) -> Vec<String> {
        self.nodes().map(|rank| self.world.name(rank)).collect()
    }

    /// Announces the session to the ranks, which join as nodes: sends them addresses and token by MPI. The message and
    /// the join may take `limit` each.
    pub(crate) fn announce(self, token: &Token, limit: Duration) -> Announce {
        let token = token.text();
        Announce::new(move |announcement| {
            let invitation = NodeInvitation::new(token.clone(), limit, announcement.addresses());
            let send = |rank| self.world.send(rank, SessionInvitation::Node(invitation.clone()), limit);
            self.nodes().try_for_each(send)
        })
        .only_once()
    }
}
