//! End-to-end tests of `disco status` for programs of this machine.

mod ask;
pub(crate) mod program;
mod stacks;

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use disco_conformance::waiting;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::PROGRAM;

/// A running program, killed on drop.
struct Program(Child);

impl Program {
    /// Starts the program, and returns once its workers hang.
    fn start(kinds: &str, set: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.env(PROGRAM, kinds).stdout(Stdio::piped()).stderr(Stdio::null());
        set(&mut command);
        let mut child = command.spawn().unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next();
        assert_eq!(line.unwrap().unwrap(), "started");
        Self(child)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    /// Stops the program. Its other threads run on until the one that gets the signal was scheduled.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let is_stopped = |task: &fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        waiting::wait_until("the stop of all threads of the program", || {
            fs::read_dir(format!("/proc/{}/task", self.id())).unwrap().flatten().all(|task| is_stopped(&task))
        });
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.id() as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn status(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_disco")).arg("status").args(args).output().unwrap()
}

/// The JSON that `disco status` prints.
fn json(args: &[&str]) -> Value {
    let output = status(args);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asks the program for JSON until it is as expected.
fn json_when(program: &Program, args: &[&str], is_expected: impl Fn(&Value) -> bool) -> Value {
    let id = program.id().to_string();
    let ask = || json(&[&[id.as_str(), "--json"], args].concat());
    waiting::wait_for("the expected status", || Some(ask()).filter(&is_expected))
}

/// Whether worker 1 of each session is inside the function, and its remaining workers are in the barrier.
fn hangs(program: &Value) -> bool {
    let is_inside = |worker: &Value| {
        let in_barrier = worker["operation"].as_str().is_some_and(|operation| operation.starts_with("barrier"));
        worker["function"] == "tests.step" && in_barrier == (worker["worker"] != 1)
    };
    let sessions = program["sessions"].as_array().unwrap();
    sessions.iter().flat_map(|session| session["workers"].as_array().unwrap()).all(is_inside)
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The tests of all files of this module.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, fn())> {
    ask::tests().into_iter().chain(stacks::tests())
}
