//! Ctrl-C while a sync waits for a worker that is stuck in user code.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use disco::{Builder, WorkerContext, block_on};

/// Environment variable, set in the program that gets the signal.
const STUCK: &str = "DISCO_TEST_STUCK";

fn sleep(_: &mut WorkerContext) -> disco::Result<()> {
    loop {
        std::thread::park();
    }
}

disco::register_function!("tests.sleep", sleep);

/// Not a test: the program that the test below runs and interrupts.
#[test]
fn stuck_program() {
    if std::env::var_os(STUCK).is_none() {
        return;
    }
    let session = Builder::threads(2).start().unwrap();
    block_on(async {
        session.call("tests.sleep", ()).await.unwrap();
        println!("process {}\nstuck", std::process::id());
        session.sync_all().await.unwrap();
    });
}

#[test]
fn ctrl_c_ends_the_program_with_status_130_and_its_workers() {
    // The shell survives the signal, like one between a terminal and a program, and reports the status.
    let script = "trap : INT; \"$0\" interrupt::stuck_program --exact --nocapture; echo status $?";
    // A signal that the parent ignores is inherited as ignored, and no shell can undo that; `env` can.
    let shell = if cfg!(target_os = "linux") { &["env", "--default-signal=INT", "sh"][..] } else { &["sh"] };
    let mut shell = Command::new(shell[0])
        .args(&shell[1..])
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(STUCK, "1")
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap());
    let mut line = String::new();
    let mut process = None;
    while !line.contains("stuck\n") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the program ended early");
        process = line.split_once("process ").map_or(process, |(_, id)| id.trim().parse::<u32>().ok());
    }
    let group = format!("-{}", shell.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    shell.wait().unwrap();
    assert!(rest.contains("status 130"), "{rest}");
    let process = process.expect("the program printed its process id");
    assert!(!std::path::Path::new(&format!("/proc/{process}")).exists(), "process {process} is left");
}
