//! `--apart`: all workers are processes of the command that starts the session.

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use disco_conformance::waiting;

use super::{disco, err, out};

crate::trials::tests!("commands::apart":
    a_command_outlives_worker_0_and_names_it,
    a_session_apart_passes_the_checks_of_all_reduce_in_groups,
    run_tells_the_program_that_its_session_is_apart,
);

const DISCO: &str = env!("CARGO_BIN_EXE_disco");

/// The processes that a command has started.
fn children(of: &Child) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", of.id())).unwrap().map_while(Result::ok);
    let lists: Vec<_> = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).map(str::to_owned).collect()
}

/// Kills the only child of a command as soon as it is there, and returns the end of the command.
fn end_after_the_loss_of_its_child(args: &[&str]) -> Output {
    let mut command = Command::new(DISCO);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = command.spawn().unwrap();
    let child = waiting::wait_for("a child of the command", || children(&started).pop());
    assert!(Command::new("kill").args(["-KILL", &child]).status().unwrap().success());
    started.wait_with_output().unwrap()
}

fn a_command_outlives_worker_0_and_names_it() {
    let bench = ["bench", "all_reduce", "-n", "1000000000"];
    for args in [&["ping", "--rounds", "1000000"][..], &bench, &["check", "--filter", "all_reduce::f32"]] {
        let ended = end_after_the_loss_of_its_child(&[args, &["--apart", "--workers", "1"]].concat());
        let said = out(&ended) + &err(&ended);
        assert!(
            ended.status.code() == Some(1) && said.contains("worker 0 lost: "),
            "{args:?}: {}: {said}",
            ended.status
        );
    }
}

fn a_session_apart_passes_the_checks_of_all_reduce_in_groups() {
    let checked = disco(&["check", "--apart", "--groups", "2", "--filter", "all_reduce::"]);
    assert!(checked.status.success() && out(&checked).contains(" 0 failed"), "{}", out(&checked));
}

fn run_tells_the_program_that_its_session_is_apart() {
    let said = |command: &mut Command| {
        let program = "echo $DISCO_APART $DISCO_SESSION $DISCO_NODES";
        out(&command.args(["--", "sh", "-c", program]).output().unwrap())
    };
    let run = |options: &[&str]| said(Command::new(DISCO).arg("run").args(options));
    assert_eq!(run(&[]), "threads 1\n");
    assert_eq!(run(&["--apart"]), "1 processes 1\n");
    assert_eq!(run(&["--apart", "--nodes", "2"]), "1 nodes 2\n");
    assert_eq!(said(Command::new(DISCO).arg("run").env("DISCO_APART", "1")), "1 processes 1\n");
}
