//! Subsets: sessions of some workers of a session. Most tests run once for threads and once for processes.
//!
//! Tests execute this program again as workers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod ends;
mod failures;
mod functions;
mod starts;
mod work;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use disco::{Builder, DRef, IntoArgs, LaneSession, SessionExt as _, SessionKind, WorkerId, block_on};
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;

const KINDS: [SessionKind; 2] = [SessionKind::Threads, SessionKind::Processes];

fn main() -> ExitCode {
    disco::init();
    let mut arguments = Arguments::from_args();
    // One test at a time, because a test counts this process's threads and descriptors.
    arguments.test_threads = Some(1);
    let tests = [ends::tests(), failures::tests(), starts::tests(), work::tests()];
    let mut trials: Vec<Trial> = tests.iter().flatten().flat_map(|test| KINDS.map(|kind| trial(test, kind))).collect();
    let of_processes = [ends::tests_of_processes(), failures::tests_of_processes()];
    trials.extend(of_processes.iter().flatten().map(|test| trial(test, SessionKind::Processes)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(&(name, test): &(&'static str, fn(SessionKind)), kind: SessionKind) -> Trial {
    Trial::test(format!("{name}::{kind}"), move || {
        test(kind);
        Ok(())
    })
}

/// Tests by name.
type Tests = Vec<(&'static str, fn(SessionKind))>;

/// Names tests after their functions.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        crate::tests![tests: $($name),*];
    };
    ($list:ident: $($name:ident),* $(,)?) => {
        pub(crate) fn $list() -> crate::Tests {
            vec![$((stringify!($name), $name as fn(disco::SessionKind))),*]
        }
    };
}
pub(crate) use tests;

/// A session of four workers.
fn start(kind: SessionKind) -> LaneSession {
    Builder::new(kind, 4).start().unwrap()
}

/// Calls a function by name.
fn call(session: &LaneSession, name: &str, args: impl IntoArgs) -> disco::Result<DRef> {
    block_on(session.call_named(name, args))
}

/// The result of a function without arguments on each worker.
fn numbers(session: &LaneSession, name: &str) -> disco::Result<Vec<i64>> {
    block_on(async { session.get_all_as(&session.call_named(name, ()).await?).await })
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
