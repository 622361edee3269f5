//! The role of this process: a program that makes sessions, or a worker.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use disco_channel::processes::{self, Invitation, Launch};
use disco_core::{Error, Result, worker};

/// The role of this process; unset until it calls [`init`](crate::init).
static ROLE: OnceLock<Role> = OnceLock::new();

/// What is executed as a worker or a node instead of this program.
static WORKER_PROGRAM: OnceLock<WorkerProgram> = OnceLock::new();

/// A program with its arguments and with variables that it gets in addition to those of this process.
#[allow(clippy::exhaustive_structs, reason = "the extension module makes one")]
#[derive(Clone, Debug)]
pub struct WorkerProgram {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Names and values.
    pub env: Vec<(OsString, OsString)>,
}

/// Lets sessions execute `program` as workers and nodes, for a process that is an interpreter: its own arguments would run
/// the user's program again. A second call changes nothing.
#[doc(hidden)]
pub fn set_worker_program(program: WorkerProgram) {
    WORKER_PROGRAM.get_or_init(|| program);
    set_program();
}

enum Role {
    Program,
    /// A test program of the standard harness, and the name of the test that serves as a worker.
    Test(String),
    Worker,
}

/// Sets the role to program, unless a role is set.
pub(crate) fn set_program() {
    ROLE.get_or_init(|| Role::Program);
}

/// Sets the role to test program, whose test `test` serves as a worker, unless a role is set.
pub(crate) fn set_test(test: String) {
    ROLE.get_or_init(|| Role::Test(test));
}

/// Serves as a worker with an [invitation](crate::Launch::elsewhere) that this process received by other means than the
/// environment. Returns after the shutdown of the session.
///
/// # Errors
/// The controller can't be reached, rejects this worker, or is lost; or the worker fails fatally, which it reports to
/// the controller.
pub fn serve(invitation: &Invitation) -> Result<()> {
    set_worker();
    processes::serve(invitation, worker::run)
}

/// Sets the role to worker, unless a role is set: a worker can't make sessions of processes.
pub(crate) fn set_worker() {
    ROLE.get_or_init(|| Role::Worker);
}

/// How to execute this program as a worker.
///
/// # Errors
/// Errors of [`check`].
pub(crate) fn launch() -> Result<Launch> {
    check()?;
    let WorkerProgram { path, args, env } = match WORKER_PROGRAM.get() {
        Some(program) => program.clone(),
        None => return Ok(Launch::this_program().args(args())),
    };
    Ok(env.into_iter().fold(Launch::program(path, args), |launch, (name, value)| launch.env(name, value)))
}

/// The command that starts a node here.
pub(crate) fn command() -> Command {
    match WORKER_PROGRAM.get() {
        Some(WorkerProgram { path, args, env }) => {
            let mut command = Command::new(path);
            command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
            command
        }
        None => {
            let mut command = Command::new(processes::this_program());
            command.args(args());
            command
        }
    }
}

/// The arguments with which this program is started as a worker or as a node.
fn args() -> Vec<OsString> {
    match ROLE.get() {
        // Makes the harness run only this test, even if it is ignored, on the main thread and without capturing its
        // output.
        Some(Role::Test(test)) => {
            ["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"].map(OsString::from).into()
        }
        _ => env::args_os().skip(1).collect(),
    }
}

/// Checks that this program can be executed as a worker.
///
/// # Errors
/// This process is a worker itself, or has not called [`init`](crate::init).
pub(crate) fn check() -> Result<()> {
    if Invitation::is_there() {
        return Err(Error::state(
            "this process was started as a worker, but it starts a session of processes: call `disco::init()` first in `main`, or \
             `disco::init_test!()` first in a test, which serves as the worker",
        ));
    }
    match ROLE.get() {
        Some(Role::Program | Role::Test(_)) => Ok(()),
        Some(Role::Worker) => Err(Error::state("a worker can't start a session of processes")),
        None => Err(Error::state(
            "a session of processes executes this program again for each worker: call `disco::init()` first in `main`; in a \
             `#[test]`, write `disco::init_test!();` as its first line",
        )),
    }
}
