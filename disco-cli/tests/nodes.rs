//! `disco run --nodes`, `disco worker` and `disco token`, as users run them on two machines.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use libtest_mimic::{Arguments, Trial};

#[path = "../../examples/hello.rs"]
mod hello;

const DISCO: &str = env!("CARGO_BIN_EXE_disco");

/// Says that this program is another.
const PROGRAM: &str = "DISCO_TEST_PROGRAM";

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A folder that is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("disco-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// This program, as the example that the README runs.
fn hello() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// The `disco` command, whose program is that example.
fn disco() -> Command {
    let mut command = Command::new(DISCO);
    command.env(PROGRAM, "hello");
    command
}

fn main() -> ExitCode {
    // Nodes and workers of the example are started with its variables.
    if std::env::var_os(PROGRAM).is_some() {
        hello::main().unwrap();
        return ExitCode::SUCCESS;
    }
    let tests: [(&str, fn()); 5] = [
        ("a_token_is_a_new_file_of_its_owner", a_token_is_a_new_file_of_its_owner),
        ("what_run_prints_joins", what_run_prints_joins),
        (
            "run_refuses_nodes_that_can_not_be_before_it_starts_anything",
            run_refuses_nodes_that_can_not_be_before_it_starts_anything,
        ),
        ("worker_says_why_it_does_not_join", worker_says_why_it_does_not_join),
        ("two_machines_run_one_session", two_machines_run_one_session),
    ];
    let trials = tests.map(|(name, test)| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

fn a_token_is_a_new_file_of_its_owner() {
    let folder = Folder::new("token");
    let path = folder.0.join("session.token");
    let token = || disco().arg("token").arg(&path).output().unwrap();
    let made = token();
    assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_to_string(&path).unwrap().trim().len(), 64);
    assert_eq!(err(&token()), format!("disco: token file {}: File exists (os error 17)\n", path.display()));
}

fn what_run_prints_joins() {
    let folder = Folder::new("join");
    let path = folder.0.join("session.token");
    assert!(disco().arg("token").arg(&path).status().unwrap().success());
    let hello = hello();
    let mut run = disco();
    run.args(["run", "--nodes", "3", "--token-file"]).arg(&path).arg("--").arg(&hello);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let (what, join) = line.split_once(": disco ").unwrap();
    assert_eq!(what, "disco: waiting for 2 more; on each");
    let join = join.replace("FILE", path.to_str().unwrap());
    let words: Vec<&str> = join.split(' ').collect();
    assert_eq!([words[0], words[1], words[3], words[4]], ["worker", "--connect", "--workers-per-node", "1"], "{join}");
    let nodes = [0, 1].map(|_| disco().args(&words).stderr(Stdio::piped()).spawn().unwrap());
    let run = run.wait_with_output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let said = String::from_utf8(run.stdout).unwrap();
    let workers: Vec<&str> =
        said.lines().filter_map(|line| line.split_once(" on ")).map(|(worker, _)| worker).collect();
    assert_eq!(workers, ["worker 0 of 3", "worker 1 of 3", "worker 2 of 3"]);
    for node in nodes {
        let node = node.wait_with_output().unwrap();
        assert!(node.status.success() && node.stderr.is_empty(), "{node:?}");
    }
}

fn run_refuses_nodes_that_can_not_be_before_it_starts_anything() {
    let run = |args: &[&str]| err(&disco().arg("run").args(args).args(["--", "echo", "started"]).output().unwrap());
    let text = run(&["--nodes", "2", "--workers", "3"]);
    assert_eq!(text, "disco: 3 workers on 2 nodes: each node has as many workers, and at least 1\n");
    let listens = ["run", "--nodes", "2", "--"];
    let text = err(&disco().args(listens).arg(hello()).output().unwrap());
    assert!(text.contains("a session whose nodes are started elsewhere needs a token"), "{text}");
}

fn worker_says_why_it_does_not_join() {
    let worker = |args: &[&str]| {
        let output = disco().arg("worker").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        err(&output)
    };
    let text = worker(&["--connect", "127.0.0.1:1"]);
    assert!(text.contains("needs a token"), "{text}");
    let folder = Folder::new("worker");
    let path = folder.0.join("session.token");
    assert!(disco().arg("token").arg(&path).status().unwrap().success());
    let text = worker(&["--connect", "127.0.0.1:1", "--wait", "0", "--token-file", path.to_str().unwrap()]);
    assert!(text.starts_with("disco: joining the controller at 127.0.0.1:1: no end after 0ns: "), "{text}");
    let text = worker(&["--connect", "127.0.0.1:1", "--token-file", "/nowhere"]);
    assert_eq!(text, "disco: token file /nowhere: No such file or directory (os error 2)\n");
    let text = worker(&["--connect", "127.0.0.1:1", "--", "no-such-program"]);
    assert_eq!(text, "disco: can't run `no-such-program`: No such file or directory (os error 2)\n");
}

/// The README's commands on two machines, where this user may make such.
fn two_machines_run_one_session() {
    let may = Command::new("unshare").args(["--net", "--uts", "true"]).output();
    if !may.is_ok_and(|tried| tried.status.success()) || Command::new("ip").arg("netns").output().is_err() {
        println!("skipped: this user can't make network namespaces, or there is no `ip`");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/two_machines.sh");
    let ran = Command::new("sh").env(PROGRAM, "hello").arg(script).arg(DISCO).arg(hello()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let said = String::from_utf8(ran.stdout).unwrap();
    let hosts: Vec<&str> = said.lines().filter_map(|line| line.split_once(" on disco-")?.1.get(..1)).collect();
    assert_eq!(hosts, ["a", "a", "b", "b"], "{said}");
}
