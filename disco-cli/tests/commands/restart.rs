//! `disco run --restart`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{disco, err, out};

#[test]
fn a_program_that_fails_is_started_again_until_it_succeeds() {
    // Fails twice: with a status, and by a signal.
    let script = "echo attempt $DISCO_RESTARTS $0; case $DISCO_RESTARTS in 0) exit 3;; 1) kill -9 $$;; esac";
    let run = disco(&["run", "--restart", "5", "--workers", "2", "--", "sh", "-c", script, "--restart"]);
    assert!(run.status.success(), "{}", err(&run));
    assert_eq!(out(&run), "attempt 0 --restart\nattempt 1 --restart\nattempt 2 --restart\n");
    let told: Vec<String> = err(&run).lines().map(str::to_owned).collect();
    assert!(told[0].starts_with("disco: the program failed: exit status: 3 after 0."), "{told:?}");
    assert!(told[0].ends_with(" s; it starts again in 1s (1 of 5)"), "{told:?}");
    assert!(told[1].starts_with("disco: the program failed: signal: 9 (SIGKILL) after 0."), "{told:?}");
    assert!(told[1].ends_with(" s; it starts again in 2s (2 of 5)"), "{told:?}");
}

#[test]
fn a_program_that_fails_each_time_is_given_up_with_all_reasons() {
    let run = disco(&["run", "--restart=1", "--", "sh", "-c", "exit $((DISCO_RESTARTS + 4))"]);
    assert_eq!(run.status.code(), Some(1));
    let told = err(&run);
    let text = told
        .split_once("disco: the program failed 2 times, and --restart is 1:\n")
        .unwrap_or_else(|| panic!("{told}"))
        .1;
    assert!(text.starts_with("1. exit status: 4 after 0.") && text.contains("\n2. exit status: 5 after 0."), "{text}");
}

#[test]
fn a_signal_ends_the_program_and_the_restarts() {
    let script = "trap 'echo told; exit 9' TERM; echo started; while true; do sleep 0.05; done";
    let mut run = Command::new(env!("CARGO_BIN_EXE_disco"));
    run.args(["run", "--restart", "3", "--", "sh", "-c", script]).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "told");
    assert_eq!(run.wait().unwrap().code(), Some(9));
}

#[test]
fn the_program_ends_with_a_killed_supervisor() {
    let mut run = Command::new(env!("CARGO_BIN_EXE_disco"));
    run.args(["run", "--restart", "3", "--", "sh", "-c", "echo $$; exec sleep 1000"]).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let line = BufReader::new(run.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    disco_conformance::waiting::wait_until("the end of the program", || {
        let stat = std::fs::read_to_string(format!("/proc/{line}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    });
}
