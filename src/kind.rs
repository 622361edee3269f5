//! Where workers live.

use std::fmt;
use std::str::FromStr;

use disco_core::{Error, Result};

/// Where the workers of a session live.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SessionKind {
    /// Threads of the controller's process.
    #[default]
    Threads,
    /// Processes of the controller's machine, but worker 0, which is a thread of the controller.
    Processes,
    /// Several machines, with an equal share each; the controller's is the first of them.
    Nodes,
}

impl SessionKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Threads, Self::Processes, Self::Nodes];

    /// Where workers live whose data plane is this backend, unless somebody says otherwise: MPI's ranks are processes.
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

impl fmt::Display for SessionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SessionKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name).join(", ");
        let unknown = || Error::invalid(format!("`{name}`: the kinds of session are: {names}"));
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(unknown)
    }
}
