//! Behavior common to all kinds of sessions: shutdown while threads wait, recovery while a worker is late, extreme
//! limits, values of all workers, types of the program, collectives called by the controller. Each test runs once per
//! kind.
//!
//! Tests execute this program again as workers and nodes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod all_workers;
mod functions;
mod limits;
mod marker;
mod plane;
mod records;
mod recovery;
mod resize;
mod shutdown;
mod trace_files;
mod user_types;
mod values;

use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use disco::{Builder, DRef, IntoArgs, LaneSession, Session as _, SessionExt as _, SessionKind, block_on};
use libtest_mimic::{Arguments, Failed, Trial};

/// Limit for operations that end at once or after limits of about a second. The defects tested here took at least 15 s.
const SOON: Duration = Duration::from_secs(12);

fn main() -> ExitCode {
    disco::init();
    let mut arguments = Arguments::from_args();
    // More threads than CPUs, because most tests wait.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(6).min(6));
    let tests = [
        all_workers::tests(),
        limits::tests(),
        plane::tests(),
        records::tests(),
        recovery::tests(),
        resize::tests(),
        shutdown::tests(),
        trace_files::tests(),
        user_types::tests(),
        values::tests(),
    ];
    // Interleaves the modules, so that tests that compute run beside tests that wait.
    let most = tests.iter().map(Vec::len).max().unwrap_or(0);
    let tests = (0..most).flat_map(|at| tests.iter().filter_map(move |tests| tests.get(at)));
    let kinds = [SessionKind::Threads, SessionKind::Processes, SessionKind::Nodes];
    let mut trials: Vec<Trial> = tests.flat_map(|test| kinds.map(|kind| trial(test, kind))).collect();
    trials.extend(
        records::tests_of_collectives().iter().flat_map(|test| [kinds[0], kinds[1]].map(|kind| trial(test, kind))),
    );
    trials.extend(records::tests_of_processes().iter().map(|test| trial(test, SessionKind::Processes)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(&(name, test): &(&'static str, fn(SessionKind)), kind: SessionKind) -> Trial {
    let run = move || {
        test(kind);
        Ok::<(), Failed>(())
    };
    Trial::test(format!("{name}::{kind}"), run)
}

/// Tests by name; each runs once per kind of session.
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

/// A session of four workers. A session of nodes has two, with threads as workers: workers 2 and 3 share the other
/// node's process.
fn builder(kind: SessionKind) -> Builder {
    Builder::new(kind, 4).node_workers(SessionKind::Threads)
}

/// Calls a function by name.
fn call(session: &LaneSession, name: &str, args: impl IntoArgs) -> disco::Result<DRef> {
    block_on(async { session.call(&session.function(name).await?, args).await })
}

/// Runs `work` on another thread and returns its result. Panics if it takes longer than `limit`.
fn within<T: Send + 'static>(limit: Duration, what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(limit).unwrap_or_else(|error| panic!("{what}: no end after {limit:?}: {error}"))
}
