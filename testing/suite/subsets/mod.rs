//! Subsets: sessions of some workers of a session. Most tests run once for each kind of parent session.

mod ends;
mod failures;
mod functions;
mod starts;
mod work;

use std::fs;
use std::path::PathBuf;
use std::thread;

use disco::{Builder, DRef, IntoArgs, LaneSession, SessionKind, WorkerId, block_on};
use tempfile::TempDir;

use crate::modules::Module;
pub(crate) use crate::trials::tests_of_kinds as tests;

/// The kind of a parent session, which has four workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Threads,
    Processes,
    /// Processes, worker 0 too.
    Apart,
    /// Two nodes, each with two threads.
    Nodes,
    /// Four nodes, each with one process; two of them are behind others.
    Tree,
}

const ALL: [Kind; 5] = [Kind::Threads, Kind::Processes, Kind::Apart, Kind::Nodes, Kind::Tree];

pub(crate) fn module() -> Module {
    let tests: [(&[Kind], Tests); 5] = [
        (&ALL, ends::tests()),
        (&ALL, failures::tests()),
        (&ALL, starts::tests()),
        (&ALL, work::tests()),
        (&[Kind::Processes, Kind::Apart, Kind::Tree], failures::tests_of_processes()),
    ];
    // One test at a time, because a test counts this process's threads and descriptors.
    let mut module = Module::new("subsets", Some(1));
    for (kinds, tests) in tests {
        for (name, test) in tests {
            let of = |module: Module, kind: &Kind| {
                let kind = *kind;
                module.test(&format!("{name}::{kind:?}"), move || test(kind))
            };
            module = kinds.iter().fold(module, of);
        }
    }
    failures::tests_that_wait().into_iter().fold(module, |module, (name, test)| {
        module.test(name, move || {
            thread::scope(|scope| ALL.iter().for_each(|kind| _ = scope.spawn(move || test(*kind))));
        })
    })
}

/// Tests by name.
type Tests = Vec<(&'static str, fn(Kind))>;

fn builder(kind: Kind) -> Builder {
    match kind {
        Kind::Threads => Builder::threads(4),
        Kind::Processes => Builder::processes(4),
        Kind::Apart => Builder::processes(4).apart(true),
        Kind::Nodes => Builder::nodes(2, 2).node_options(|nodes| nodes.workers = SessionKind::Threads),
        Kind::Tree => Builder::nodes(4, 1).node_options(|nodes| nodes.fan_out = Some(1)),
    }
}

/// A session of four workers.
fn start(kind: Kind) -> LaneSession {
    builder(kind).start().unwrap()
}

/// Calls a function by name.
fn call(session: &LaneSession, name: &str, args: impl IntoArgs) -> disco::Result<DRef> {
    block_on(session.call(name, args))
}

/// The result of a function without arguments on each worker.
fn numbers(session: &LaneSession, name: &str) -> disco::Result<Vec<i64>> {
    block_on(async { session.get_all(&session.call(name, ()).await?).await })
}

/// The numbers of all workers of a session, as text that shows that they take commands.
fn answer(session: &LaneSession) -> disco::Result<Vec<i64>> {
    numbers(session, "subsets.worker")
}

fn worker(number: u32) -> WorkerId {
    WorkerId::new(number)
}

/// A place for which worker functions of any process wait: a file, which does not exist yet.
struct Door(TempDir);

impl Door {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("open")
    }

    fn text(&self) -> String {
        self.path().display().to_string()
    }

    fn open(&self) {
        fs::write(self.path(), "").unwrap();
    }
}

impl Drop for Door {
    /// Lets the functions go that wait.
    fn drop(&mut self) {
        self.open();
    }
}
