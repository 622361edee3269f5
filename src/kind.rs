//! The kinds of sessions.

use std::str::FromStr;

use disco_core::{Error, Result};

/// Where the workers of a session run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SessionKind {
    /// Threads of the controller's process.
    #[default]
    Threads,
    /// Processes of the controller's machine, except worker 0, which is a thread of the controller's process unless
    /// [`Builder::apart`](crate::Builder::apart) makes it a process, too.
    Processes,
    /// Several machines with an equal number of workers each. Node 0 is the controller's machine.
    Nodes,
}

impl SessionKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Threads, Self::Processes, Self::Nodes];

    /// The default kind for a backend: processes for `mpi`, whose ranks are processes, else threads.
    pub fn of(backend: &str) -> Self {
        if backend == "mpi" { Self::Processes } else { Self::default() }
    }

    /// The name in `DISCO_SESSION` and `--session`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Nodes => "nodes",
        }
    }
}

disco_core::format_as!(Display for SessionKind, |it| "{}", it.name());

impl FromStr for SessionKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name).join(", ");
        let unknown = || Error::invalid(format!("`{name}`: the kinds of session are: {names}"));
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(unknown)
    }
}
