//! Sessions that the subcommands start.

use disco::{Builder, SessionKind, World, backend};

/// Where the workers of a session run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) kind: SessionKind,
}

impl Layout {
    /// The layout that `--session` names, or else the one that suits the backend.
    pub(crate) fn new(session: Option<SessionKind>, backend: &str) -> Self {
        Self { kind: session.unwrap_or(SessionKind::of(backend)) }
    }

    /// A session with `workers` workers.
    pub(crate) fn builder(self, workers: usize) -> Builder {
        Builder::new(self.kind, workers)
    }

    /// Checks that a backend reaches the workers of a session that is started here: nodes are two, as by default.
    ///
    /// # Errors
    /// The backend is unknown, or reaches workers of one machine only.
    pub(crate) fn check_reach(self, backend: &str, world: World) -> anyhow::Result<()> {
        let world = if self.kind == SessionKind::Nodes { world.on_nodes(2)? } else { world };
        Ok(disco_core::backend::check_reach(backend::find(backend)?, &world)?)
    }

    /// Starts this command again as ranks of MPI, if the workers of its sessions are such ranks and need that: all that MPI's
    /// launcher starts, or those of several sessions.
    ///
    /// # Errors
    /// There is no MPI library, or its launcher can't be executed.
    pub(crate) fn start_ranks(self, backend: &str, workers: usize, several: bool) -> anyhow::Result<()> {
        #[cfg(all(feature = "mpi", target_os = "linux"))]
        if backend == "mpi" && self.kind == SessionKind::Processes {
            disco::restart_under_mpi(workers, false, several)?;
        }
        _ = (backend, workers, several);
        Ok(())
    }
}
