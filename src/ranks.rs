//! Ranks that an MPI launcher has started, as workers of this process's sessions.

use std::sync::OnceLock;
use std::time::Duration;

use disco_channel::nodes::{Announce, Token};
use disco_channel::processes::Launch;
use disco_core::{Error, Result};
use disco_mpi::{Host, Joining, Letter};

use crate::SessionKind;

/// The world whose rank 0 this process is, if a launcher has made one.
static WORLD: OnceLock<&'static Host> = OnceLock::new();

/// From now on sessions find the ranks of this world.
pub(crate) fn lead(world: &'static Host) {
    WORLD.get_or_init(|| world);
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
