//! Sessions that the subcommands start.

use anyhow::ensure;
use disco::{Builder, SessionKind, Settings, World, backend};
use disco_core::env::Variable;

/// The session of `disco run`, if that has started this command as the program of several nodes.
///
/// # Errors
/// Those of [`Settings::from_env`].
pub(crate) fn of_run() -> anyhow::Result<Option<Settings>> {
    match Variable::read("DISCO_NODES").number::<usize>()? {
        Some(2..) => Ok(Some(Settings::from_env()?)),
        _ => Ok(None),
    }
}

/// Where the workers of a session run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) kind: SessionKind,
    /// Whether all workers are processes, also worker 0.
    pub(crate) apart: bool,
}

impl Layout {
    /// The layout that `--session` and `--apart` describe. Without `--session` it is the `usual` kind, or processes instead of
    /// threads with `--apart`.
    ///
    /// # Errors
    /// `--session threads` with `--apart`.
    pub(crate) fn new(session: Option<SessionKind>, usual: SessionKind, apart: bool) -> anyhow::Result<Self> {
        let usual = if apart && usual == SessionKind::Threads { SessionKind::Processes } else { usual };
        let kind = session.unwrap_or(usual);
        ensure!(
            !apart || kind != SessionKind::Threads,
            "--apart (or DISCO_APART=1) needs workers that are processes, but those of `--session threads` are threads; use \
             `--session processes`"
        );
        Ok(Self { kind, apart })
    }

    /// The usual kind of session for a backend: nodes of this machine for `tcp`, which would otherwise be `local`.
    pub(crate) fn usual(backend: &str) -> SessionKind {
        if backend == "tcp" { SessionKind::Nodes } else { SessionKind::of(backend) }
    }

    /// A session with `workers` workers.
    pub(crate) fn builder(self, workers: usize) -> Builder {
        let builder = Builder::new(self.kind, workers);
        builder.apart(self.apart)
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
        #[cfg(feature = "mpi")]
        if backend == "mpi" && self.kind == SessionKind::Processes {
            disco::internal::restart_under_mpi(workers, self.apart, several)?;
        }
        _ = (backend, workers, several);
        Ok(())
    }
}
