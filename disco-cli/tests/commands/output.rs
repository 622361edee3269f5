//! Output to closed pipes, files and terminals.

use std::io;
use std::process::{Command, Output, Stdio};

use super::{disco, err};

crate::trials::tests!("commands::output":
    a_closed_pipe_as_standard_output_is_a_success,
    a_failure_with_closed_standard_error_has_exit_status_1,
    output_to_a_full_disk_is_an_error,
    logs_to_a_pipe_have_no_escape_codes,
    messages_and_errors_are_json_if_asked,
    messages_of_a_restarted_program_are_json_if_asked,
    backends_wraps_lines_on_a_terminal_only,
);

/// Runs the command with a closed pipe as standard output, and, with `error_too`, as standard error.
fn into_closed_pipes(args: &[&str], error_too: bool) -> Output {
    let closed = || io::pipe().unwrap().1;
    let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
    command.args(args).stdout(closed()).stderr(if error_too { Stdio::from(closed()) } else { Stdio::piped() });
    command.spawn().unwrap().wait_with_output().unwrap()
}

fn a_closed_pipe_as_standard_output_is_a_success() {
    let commands: [&[&str]; 5] = [
        &["backends"],
        &["topo"],
        &["bench", "all_reduce", "--max-bytes", "64", "-n", "5"],
        &["check", "--workers", "2", "--filter", "all_reduce::i8"],
        &["ping", "--workers", "2", "--rounds", "20"],
    ];
    for command in commands {
        for format in [&["--json"][..], &[]] {
            let args = [command, format].concat();
            let output = into_closed_pipes(&args, false);
            assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()), "{args:?}");
            assert_eq!(into_closed_pipes(&args, true).status.code(), Some(0), "{args:?}");
        }
    }
    let output = into_closed_pipes(&["completions", "bash"], false);
    assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
}

fn a_failure_with_closed_standard_error_has_exit_status_1() {
    for args in [&["check", "--backend", "ucc"][..], &["bench", "all_reduce", "--root", "1"]] {
        assert_eq!(into_closed_pipes(args, true).status.code(), Some(1), "{args:?}");
    }
}

fn output_to_a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
    let output = command.args(["backends", "--json"]).stdout(full).output().unwrap();
    assert_eq!(
        (output.status.code(), err(&output)),
        (Some(1), "disco: No space left on device (os error 28)\n".to_owned())
    );
}

fn logs_to_a_pipe_have_no_escape_codes() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
    command.env_remove("NO_COLOR").env("DISCO_LOG", "trace").args([
        "bench",
        "all_reduce",
        "--max-bytes",
        "64",
        "-n",
        "5",
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success() && !output.stderr.is_empty(), "there is a log");
    for text in [&output.stdout, &output.stderr] {
        assert!(!text.contains(&b'\x1b'), "{}", String::from_utf8_lossy(text));
    }
}

fn messages_and_errors_are_json_if_asked() {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_disco"));
    worker.args(["worker", "--log-format", "json", "--connect", "127.0.0.1:1", "--wait", "1"]);
    let output = worker.env("DISCO_TOKEN", "0".repeat(64)).env_remove("DISCO_LOG").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = err(&output);
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, .., last] = &lines[..] else { panic!("{text}") };
    assert_eq!((&first["level"], &last["level"]), (&"INFO".into(), &"ERROR".into()), "{text}");
    let message = |line: &serde_json::Value| line["message"].as_str().unwrap().to_owned();
    assert!(message(first).starts_with("waiting for the controller at 127.0.0.1:1"), "{text}");
    assert!(message(last).starts_with("joining the controller at 127.0.0.1:1: no end after 1s"), "{text}");
}

/// The command starts itself again, with its options.
fn messages_of_a_restarted_program_are_json_if_asked() {
    let output = disco(&["--log-format=json", "run", "--restart", "1", "--", "/nowhere/program"]);
    let text = err(&output);
    let lines: Result<Vec<serde_json::Value>, _> = text.lines().map(serde_json::from_str).collect();
    let message = |line: serde_json::Value| line["message"].as_str().unwrap().to_owned();
    let messages: Vec<String> = lines.expect(&text).into_iter().map(message).collect();
    let refused = "can't run `/nowhere/program`: No such file or directory (os error 2)";
    assert!(messages.len() == 4 && messages[0] == refused && messages[2] == refused, "{text}");
}

fn backends_wraps_lines_on_a_terminal_only() {
    let nowhere = |command: &mut Command| {
        for variable in ["DISCO_NCCL_LIBRARY", "DISCO_RCCL_LIBRARY"] {
            command.env(variable, format!("/nowhere/{}/library.so", "folder".repeat(20)));
        }
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
    nowhere(command.arg("backends"));
    let shown = super::terminal::output(command);
    let widest = shown.lines().map(|line| line.trim_end().chars().count()).max();
    assert!(widest.is_some_and(|widest| (60..=80).contains(&widest)), "{shown}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_disco"));
    nowhere(command.arg("backends"));
    let listed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(listed.lines().any(|line| line.starts_with("nccl     unavailable") && line.len() > 120), "{listed}");
    assert!(disco(&["backends"]).status.success());
}
