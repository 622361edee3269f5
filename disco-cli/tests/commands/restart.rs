//! `disco run --restart`.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{disco, err, out};

crate::trials::tests!("commands::restart":
    a_program_that_fails_is_started_again_until_it_succeeds,
    a_program_that_fails_each_time_is_given_up_with_all_reasons,
    a_signal_ends_the_program_and_the_restarts,
    the_program_ends_with_a_killed_supervisor,
    an_ignored_hangup_stays_ignored_for_the_supervisor_and_its_program,
    the_end_of_a_program_is_seen_while_its_signal_is_blocked,
    an_interrupt_without_a_terminal_is_passed_on,
    process_1_ends_at_a_signal,
);

fn a_program_that_fails_is_started_again_until_it_succeeds() {
    // Fails twice: with a status, and by a signal.
    let script = "echo attempt $DISCO_RESTARTS $0; case $DISCO_RESTARTS in 0) exit 3;; 1) kill -9 $$;; esac";
    let run = disco(&["run", "--restart", "5", "--", "sh", "-c", script, "--restart"]);
    assert!(run.status.success(), "{}", err(&run));
    assert_eq!(out(&run), "attempt 0 --restart\nattempt 1 --restart\nattempt 2 --restart\n");
    let told: Vec<String> = err(&run).lines().map(str::to_owned).collect();
    assert!(told[0].starts_with("disco: the program failed: exit status: 3 after 0."), "{told:?}");
    assert!(told[0].ends_with(" s; it starts again in 1s (1 of 5)"), "{told:?}");
    assert!(told[1].starts_with("disco: the program failed: signal: 9 (SIGKILL) after 0."), "{told:?}");
    assert!(told[1].ends_with(" s; it starts again in 2s (2 of 5)"), "{told:?}");
}

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

/// `disco run --restart 2` of a program, without a terminal, after `env` with this option.
fn run_after_env(option: &str, program: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut run = Command::new("setsid");
    run.args(["env", option, env!("CARGO_BIN_EXE_disco"), "run", "--restart", "2", "--"]).args(program);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(run.stdout.take().unwrap()).lines();
    (run, lines)
}

fn an_ignored_hangup_stays_ignored_for_the_supervisor_and_its_program() {
    let script = "echo $$; read line; echo $line";
    let (mut run, mut lines) = run_after_env("--ignore-signal=HUP", &["sh", "-c", script]);
    let program: i32 = lines.next().unwrap().unwrap().parse().unwrap();
    kill_process(Pid::from_child(&run), Signal::HUP).unwrap();
    kill_process(Pid::from_raw(program).unwrap(), Signal::HUP).unwrap();
    run.stdin.take().unwrap().write_all(b"finished\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "finished");
    assert!(run.wait().unwrap().success());
}

fn the_end_of_a_program_is_seen_while_its_signal_is_blocked() {
    let (mut run, mut lines) = run_after_env("--block-signal=CHLD", &["grep", "SigBlk", "/proc/self/status"]);
    let blocked = lines.next().unwrap().unwrap();
    assert!(blocked.ends_with("0000000000010000"), "the program inherits it: {blocked}");
    assert!(run.wait().unwrap().success());
}

fn an_interrupt_without_a_terminal_is_passed_on() {
    let script = "trap 'echo told; exit 9' INT; echo started; while true; do sleep 0.05; done";
    let (mut run, mut lines) = run_after_env("--default-signal=INT", &["sh", "-c", script]);
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "told");
    assert_eq!(run.wait().unwrap().code(), Some(9));
}

/// In a process namespace of its own, where the system permits that.
fn process_1_ends_at_a_signal() {
    let unshare = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child=KILL"];
    if !Command::new("unshare").args(unshare).arg("true").stderr(Stdio::null()).status().is_ok_and(|it| it.success()) {
        return;
    }
    let worker: &[&str] = &["worker", "--connect", "127.0.0.1:9"];
    for (command, signal) in [
        (worker, Signal::TERM),
        (worker, Signal::INT),
        (&[worker, &["--reconnect"]].concat(), Signal::TERM),
        (&[worker, &["--reconnect"]].concat(), Signal::INT),
    ] {
        let mut run = Command::new("unshare");
        run.args(unshare).args(["env", "--default-signal=INT"]).arg(env!("CARGO_BIN_EXE_disco")).args(command);
        run.stderr(Stdio::piped());
        run.env("DISCO_TOKEN", "8d15c6f5e0a94c3f8d15c6f5e0a94c3f");
        let mut run = run.spawn().unwrap();
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
        let waits = lines.next().unwrap().unwrap();
        assert!(waits.starts_with("disco: waiting for the controller at 127.0.0.1:9"), "{waits}");
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
        kill_process(Pid::from_raw(children.trim().parse().unwrap()).unwrap(), signal).unwrap();
        assert!(!run.wait().unwrap().success(), "{command:?} {signal:?}");
    }
}
