//! Behavior common to all kinds of sessions: shutdown while threads wait, recovery while a worker is late, extreme
//! limits, values of all workers, types of the program, collectives called by the controller. Each test runs once per
//! kind.
//!
//! Tests execute this program again as workers and nodes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

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
mod selected;
mod shutdown;
mod started;
mod streaming;
mod trace_files;
#[path = "../trials/mod.rs"]
mod trials;
mod user_types;
mod values;
#[path = "../with_session/mod.rs"]
mod with_session;

use std::fmt;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use disco::{Builder, DRef, IntoArgs, LaneSession, SessionExt as _, SessionKind, block_on};
use libtest_mimic::Trial;
pub(crate) use trials::tests_of_kinds as tests;

/// Limit for operations that end at once or after limits of about a second. The defects tested here took at least 15 s.
const SOON: Duration = Duration::from_secs(12);

fn main() -> ExitCode {
    disco::init();
    let tests = [
        all_workers::tests(),
        cancelled::tests(),
        limits::tests(),
        meshes::tests(),
        plane::tests(),
        records::tests(),
        recovery::tests(),
        resize::tests(),
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
    let mut trials: Vec<Trial> = tests.flat_map(|test| Kind::ALL.map(|kind| trial(test, kind))).collect();
    let processes = [Kind::Processes, Kind::ProcessesApart];
    let collectives = records::tests_of_collectives();
    let kinds = processes.iter().chain([&Kind::Threads]);
    trials.extend(kinds.flat_map(|kind| collectives.iter().map(|test| trial(test, *kind))));
    trials.extend(records::tests_of_processes().iter().flat_map(|test| processes.map(|kind| trial(test, kind))));
    // More threads than CPUs, because most tests wait.
    trials::run(trials, Some(6))
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

fn trial(&(name, test): &(&'static str, fn(Kind)), kind: Kind) -> Trial {
    trials::trial(format!("{name}::{kind}"), move || test(kind))
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
    block_on(async { session.call_named(name, args).await })
}

/// Runs `work` on another thread and returns its result. Panics if it takes longer than `limit`.
fn within<T: Send + 'static>(limit: Duration, what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(limit).unwrap_or_else(|error| panic!("{what}: no end after {limit:?}: {error}"))
}
