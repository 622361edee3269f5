//! Runs tests of the standard harness in their own processes.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use disco_conformance::waiting;
use rustix::process::{Pid, Signal, kill_process};

/// Time limit of a test process, which only a hang reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Prints the skip messages in the output of a test process.
pub(crate) fn repeat_skips(output: &str) {
    // The harness may print the test's name before the message on the same line.
    let skips = output.lines().filter_map(|line| line.find("skipped: ").map(|at| &line[at..]));
    skips.for_each(|skip| println!("{skip}"));
}

/// Runs the ignored test `name` in a new process, whose environment `prepare` changes.
///
/// # Panics
/// The test fails or does not end.
pub(crate) fn run(name: &str, prepare: impl FnOnce(&mut Command)) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    prepare(&mut command);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    // Reads while the process runs: full pipes would stop it.
    let output = thread::spawn(move || child.wait_with_output().unwrap());
    let is_over = waiting::poll(TEST_TIMEOUT, || output.is_finished().then_some(())).is_some();
    if !is_over {
        _ = kill_process(pid, Signal::KILL);
    }
    let output = output.join().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(is_over, "{name} does not end\n{out}\n{err}");
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed") || out.contains("is over"), "{name} was not run\n{out}");
    repeat_skips(&out);
}
