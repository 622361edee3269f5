//! Behavior common to all kinds of sessions: shutdown while threads wait, recovery while a worker is late, extreme
//! limits, values of all workers, types of the program, collectives called by the controller. Each test runs once per
//! kind.

mod all_workers;
mod cancelled;
mod functions;
mod limits;
mod marker;
mod meshes;
mod plane;
mod records;
mod recovery;
mod resize;
mod returned;
mod selected;
mod shutdown;
mod started;
mod streaming;
mod trace_files;
mod user_types;
mod values;

use std::fmt;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use disco::{Builder, DRef, IntoArgs, LaneSession, SessionKind, block_on};

use crate::modules::Module;
pub(crate) use crate::trials::tests_of_kinds as tests;

/// Limit for operations that end at once or after limits of about a second. The defects tested here took at least 15 s.
const SOON: Duration = Duration::from_secs(12);

pub(crate) fn module() -> Module {
    let tests = [
        all_workers::tests(),
        cancelled::tests(),
        limits::tests(),
        meshes::tests(),
        plane::tests(),
        records::tests(),
        recovery::tests(),
        resize::tests(),
        returned::tests(),
        selected::tests(),
        shutdown::tests(),
        started::tests(),
        streaming::tests(),
        trace_files::tests(),
        user_types::tests(),
        values::tests(),
    ];
    // Interleaves the modules, so that tests that compute run beside tests that wait.
    let most = tests.iter().map(Vec::len).max().unwrap_or(0);
    let tests = (0..most).flat_map(|at| tests.iter().filter_map(move |tests| tests.get(at)));
    let mut all: Vec<_> = tests.flat_map(|test| Kind::ALL.map(|kind| (*test, kind))).collect();
    let processes = [Kind::Processes, Kind::ProcessesApart];
    let kinds = processes.into_iter().chain([Kind::Threads]);
    all.extend(kinds.flat_map(|kind| records::tests_of_collectives().into_iter().map(move |test| (test, kind))));
    all.extend(records::tests_of_processes().into_iter().flat_map(|test| processes.map(|kind| (test, kind))));
    // More threads than CPUs, because most tests wait.
    all.into_iter().fold(Module::new("kinds", Some(6)), |module, ((name, test), kind)| {
        module.test(&format!("{name}::{kind}"), move || test(kind))
    })
}

/// Where the workers of a session run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Threads,
    Processes,
    ProcessesApart,
    Nodes,
    NodesApart,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Threads, Self::Processes, Self::ProcessesApart, Self::Nodes, Self::NodesApart];

    fn session(self) -> SessionKind {
        match self {
            Self::Threads => SessionKind::Threads,
            Self::Processes | Self::ProcessesApart => SessionKind::Processes,
            Self::Nodes | Self::NodesApart => SessionKind::Nodes,
        }
    }

    fn is_apart(self) -> bool {
        matches!(self, Self::ProcessesApart | Self::NodesApart)
    }

    fn is_nodes(self) -> bool {
        self.session() == SessionKind::Nodes
    }

    /// A session of `workers` workers.
    fn builder(self, workers: usize) -> Builder {
        Builder::new(self.session(), workers).apart(self.is_apart())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.session(), if self.is_apart() { "-apart" } else { "" })
    }
}

/// Tests by name; each runs once per kind of session.
type Tests = Vec<(&'static str, fn(Kind))>;

/// A session of four workers. A session of nodes has two, with threads as workers unless worker 0 is a process of its own: workers 2 and 3 share
/// the other node's process.
fn builder(kind: Kind) -> Builder {
    match kind {
        Kind::Nodes => kind.builder(4).node_options(|nodes| nodes.workers = SessionKind::Threads),
        kind => kind.builder(4),
    }
}

/// Calls a function by name.
fn call(session: &LaneSession, name: &str, args: impl IntoArgs) -> disco::Result<DRef> {
    block_on(async { session.call(name, args).await })
}

/// Runs `work` on another thread and returns its result. Panics if it takes longer than `limit`.
fn within<T: Send + 'static>(limit: Duration, what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(limit).unwrap_or_else(|error| panic!("{what}: no end after {limit:?}: {error}"))
}
