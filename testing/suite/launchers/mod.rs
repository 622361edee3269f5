//! Tasks of launchers without MPI: this program is executed as several tasks with the variables that a launcher sets.
//! `disco-cli/tests/mpi` runs real launchers of MPI.

mod apart;
mod one_machine;
pub(crate) mod program;
mod several_machines;
mod torchrun;

use std::env;
use std::process::{Child, Command, Output, Stdio};

use crate::modules::Module;
pub(crate) use crate::trials::tests;

/// Variable with the part of [`program`] that a task runs.
const PART: &str = "DISCO_TESTS_PART";

pub(crate) fn module() -> Module {
    let tests = [apart::tests(), one_machine::tests(), several_machines::tests(), torchrun::tests()].concat();
    Module::new("launchers", None).tests(tests)
}

/// A task of this program, with the variables of a launcher.
fn task(part: &str, variables: &[(&str, String)]) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(PART, part).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.spawn().unwrap()
}

/// With more variables.
fn with(variables: Vec<(&'static str, String)>, more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let more: Vec<_> = more.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    [variables, more].concat()
}

/// The last task starts first, and all run to their ends. The outputs are in rank order.
fn run(size: usize, start: impl Fn(usize) -> Child) -> Vec<Output> {
    let tasks: Vec<Child> = (0..size).rev().map(start).collect();
    tasks.into_iter().rev().map(|task| task.wait_with_output().unwrap()).collect()
}

/// Standard output, and then standard error.
fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// Asserts that all tasks but the first have ended in order and without a word.
fn assert_others_are_silent(outputs: &[Output]) {
    for (rank, output) in outputs.iter().enumerate().skip(1) {
        assert!(output.status.success() && text(output).is_empty(), "task {rank}: {}: {}", output.status, text(output));
    }
}
