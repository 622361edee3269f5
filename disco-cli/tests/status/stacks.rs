//! The stacks of programs.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::{Program, err, hangs, json_when, out, status};

crate::trials::tests!("status::stacks":
    stacks_name_the_function_in_which_a_worker_hangs,
    stacks_of_a_stopped_program_are_shown_and_it_stays_stopped,
    stacks_of_a_worker_process_are_shown_by_its_own_id,
    without_permission_the_reason_stands_in_place_of_a_stack,
);

/// The functions in a stack.
fn functions(stack: &Value) -> Vec<&str> {
    stack["frames"].as_array().unwrap().iter().filter_map(|frame| frame["function"].as_str()).collect()
}

fn has(stack: &Value, function: &str) -> bool {
    functions(stack).iter().any(|name| name.contains(function))
}

fn stacks_name_the_function_in_which_a_worker_hangs() {
    for kind in ["threads", "processes"] {
        let program = Program::start(kind, |_| {});
        json_when(&program, &[], hangs);
        let shown = json_when(&program, &["--stacks"], hangs);
        let stacks = shown["stacks"].as_array().unwrap();
        assert_eq!(stacks.len(), 5, "{stacks:#?}");
        for stack in stacks {
            assert_eq!(stack["problem"], Value::Null, "{stack:#}");
            let (in_hang, in_barrier) =
                (has(stack, "program::worker_1_hangs_here"), has(stack, "Communicator>::enqueue"));
            assert_eq!(
                (in_hang, in_barrier),
                match stack["worker"].as_u64() {
                    Some(1) => (true, false),
                    Some(_) => (false, true),
                    None => (false, false),
                },
                "{stack:#}"
            );
            assert_eq!(has(stack, "program::main_waits_here"), stack["worker"].is_null(), "{stack:#}");
        }
        let frames = stacks[1]["frames"].as_array().unwrap();
        let hung = frames.iter().find(|frame| frame["function"].as_str().unwrap().ends_with("worker_1_hangs_here"));
        assert!(hung.unwrap()["location"].as_str().unwrap().contains("tests/status/program.rs:"), "{frames:#?}");
        let text = out(&status(&[&program.id().to_string(), "--stacks"]));
        assert!(text.contains("\nworker 1: process ") && text.contains("\nmain thread: process "), "{text}");
        let line = text.lines().find(|line| line.starts_with("worker 1: ")).unwrap();
        assert!(line.contains(", sleeping in "), "{line}");
        // The program goes on.
        json_when(&program, &[], hangs);
    }
}

fn stacks_of_a_stopped_program_are_shown_and_it_stays_stopped() {
    let program = Program::start("threads", |_| {});
    json_when(&program, &[], hangs);
    program.stop();
    let shown = status(&[&program.id().to_string(), "--stacks"]);
    assert!(err(&shown).contains("it is stopped"), "{}", err(&shown));
    let text = out(&shown);
    assert!(text.contains("disco-worker-1: process ") && text.contains("stopped by a signal"), "{text}");
    assert!(text.contains("program::worker_1_hangs_here") && text.contains("program::main_waits_here"), "{text}");
    let state = fs::read_to_string(format!("/proc/{}/stat", program.id())).unwrap();
    assert!(state.contains(") T "), "{state}");
    program.signal(Signal::CONT);
    json_when(&program, &[], hangs);
}

fn stacks_of_a_worker_process_are_shown_by_its_own_id() {
    let program = Program::start("processes", |_| {});
    let shown = json_when(&program, &[], hangs);
    let worker = &shown["sessions"][0]["workers"][1]["process"];
    let asked = status(&[&worker.to_string(), "--stacks"]);
    assert!(err(&asked).contains("has no session of this user"), "{}", err(&asked));
    assert!(out(&asked).contains("program::worker_1_hangs_here"), "{}", out(&asked));
}

/// Makes a program and its client those of a user without rights.
fn without_rights(command: &mut Command) {
    const NOBODY: u32 = 65534;
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
}

fn without_permission_the_reason_stands_in_place_of_a_stack() {
    let program = Program::start("threads", |command| {
        command.env("DISCO_TEST_NOT_DUMPABLE", "1");
        without_rights(command);
    });
    let mut client = Command::new(env!("CARGO_BIN_EXE_disco"));
    without_rights(&mut client);
    let shown = client.args(["status", &program.id().to_string(), "--stacks"]).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let text = out(&shown);
    assert!(text.contains("tests.step"), "{text}");
    let why = ": not permitted: ";
    assert_eq!(text.matches(why).count(), 5, "{text}");
    assert!(text.contains("may not be dumped") || text.contains("kernel.yama.ptrace_scope"), "{text}");
}
