//! End-to-end tests of `disco run --nodes` and `--hosts`, `disco worker`, `disco status` and `disco token`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use disco_conformance::waiting;
use disco_testing::namespaces;
use rustix::process::{Pid, Signal, kill_process};

use crate::PROGRAM;

#[path = "../../../examples/hello.rs"]
mod hello;
mod hosts;
mod network;
mod service;
mod status;
mod tcp;
mod traces;

const DISCO: &str = env!("CARGO_BIN_EXE_disco");

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("disco-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Makes a token, and returns the path of its file.
    fn token(&self) -> PathBuf {
        let path = self.0.join("session.token");
        assert!(disco().arg("token").arg(&path).status().unwrap().success());
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Path of this executable, which is the example of docs/launching.md if [`PROGRAM`] is `hello`.
fn hello() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// The `disco` command, in an environment that makes this executable the example `hello`.
fn disco() -> Command {
    let mut command = Command::new(DISCO);
    command.env(PROGRAM, "hello");
    command
}

fn greet(ctx: &mut disco::WorkerContext) -> disco::Result<()> {
    println!("{} prints", ctx.worker());
    eprintln!("{} warns", ctx.worker());
    Ok(())
}

disco::register_function!("nodes.greet", greet);

/// `main` of a program whose workers print. At most `fan_out` nodes are children of one end.
fn say(fan_out: Option<usize>) -> ExitCode {
    disco::init();
    let settings = disco::Settings::from_env();
    let started = settings.and_then(|it| it.builder().node_options(|nodes| nodes.fan_out = fan_out).start());
    let said = started.and_then(|session| {
        disco::block_on(async {
            session.call(&session.function("nodes.greet").await?, ()).await?;
            session.sync_all().await?;
            session.shutdown().await
        })
    });
    said.map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// `main` of a program that keeps its session open.
fn stall() -> ExitCode {
    disco::init();
    let session = disco::from_env().unwrap();
    disco::block_on(session.sync_all()).unwrap();
    println!("started");
    waiting::hang()
}

crate::trials::tests!("nodes":
    token_creates_a_file_that_only_its_owner_can_read,
    nodes_join_with_the_command_that_run_prints,
    bench_measures_the_session_of_run,
    run_warns_if_it_listens_on_loopback_only,
    each_worker_has_log_files_that_a_second_run_appends_to,
    each_node_has_the_log_files_of_its_workers,
    an_unwritable_log_file_is_an_error_with_its_path,
    run_rejects_unequal_nodes_and_a_missing_token_before_the_program_starts,
    worker_prints_why_it_can_not_join,
    a_worker_that_reconnects_serves_one_session_after_another,
    nodes_in_two_network_namespaces_form_one_session,
);

/// The tests of all files of this module.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, fn())> {
    let tests =
        [tests(), service::tests(), status::tests(), tcp::tests(), network::tests(), traces::tests(), hosts::tests()];
    tests.into_iter().flatten()
}

/// The session of `disco run` has two nodes, and so does the measurement.
fn bench_measures_the_session_of_run() {
    let folder = Folder::new("bench");
    let token = folder.token();
    let measured = |options: &[&str]| {
        let mut run = disco();
        run.args(["run", "--nodes", "2", "--workers", "4", "--token-file"]).arg(&token).args(["--", DISCO, "bench"]);
        run.args(["all_reduce", "--backend", "tcp", "-b", "8", "-e", "8", "-n", "1", "--json"]).args(options);
        let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(run.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let node = line.trim().split_once(": disco ").filter(|(what, _)| what.ends_with("on each")).map(|(_, join)| {
            let join = join.replace("FILE", token.to_str().unwrap());
            disco().args(join.split(' ')).stderr(Stdio::null()).spawn().unwrap()
        });
        let run = run.wait_with_output().unwrap();
        if let Some(mut node) = node {
            assert!(node.wait().unwrap().success());
        }
        (line, String::from_utf8(run.stdout).unwrap())
    };
    let (_, json) = measured(&[]);
    for part in ["\"session\": \"nodes\"", "\"workers\": 4", "\"wrong\": 0"] {
        assert!(json.contains(part), "no {part} in {json}");
    }
    let (refused, _) = measured(&["--workers", "2"]);
    let text = "--workers, --session and --apart have no effect: `disco run` has them for its program";
    assert!(refused.contains(text), "{refused}");
}

/// Runs the program, if one of these files has it.
pub(crate) fn run(program: &str) -> Option<ExitCode> {
    Some(match program {
        "hello" => {
            hello::main().unwrap();
            ExitCode::SUCCESS
        }
        "say" => say(None),
        "say-in-a-chain" => say(Some(1)),
        "stall" => stall(),
        "add" => tcp::main(),
        "cut" => tcp::cut(),
        "reach" => tcp::reach(),
        "send" => network::send(),
        "doze" => service::doze(),
        "hurry" => hosts::hurry(),
        "replace" => hosts::replace(),
        _ => return None,
    })
}

fn token_creates_a_file_that_only_its_owner_can_read() {
    let folder = Folder::new("token");
    let path = folder.0.join("session.token");
    let token = || disco().arg("token").arg(&path).output().unwrap();
    let made = token();
    assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_to_string(&path).unwrap().trim().len(), 64);
    assert_eq!(err(&token()), format!("disco: token file {}: File exists (os error 17)\n", path.display()));
}

fn nodes_join_with_the_command_that_run_prints() {
    let folder = Folder::new("join");
    let path = folder.token();
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
    assert_eq!([words[0], words[1], words[3]], ["worker", "--connect", "--token-file"], "{join}");
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

fn run_warns_if_it_listens_on_loopback_only() {
    let folder = Folder::new("reach");
    let path = folder.token();
    let (four, six) = (("127.0.0.1", Some("0.0.0.0")), ("[::1]", Some("[::]")));
    for (listen, (own, all)) in
        [(None, four), (Some("127.0.0.1:0"), four), (Some("[::1]:0"), six), (Some("0.0.0.0:0"), ("127.0.0.1", None))]
    {
        if listen.is_some_and(|listen| TcpListener::bind(listen).is_err()) {
            println!("skipped: this machine has no {own}");
            continue;
        }
        let mut run = disco();
        run.args(["run", "--nodes", "2", "--token-file"]).arg(&path);
        listen.map(|address| run.args(["--listen", address]));
        let mut run = run.arg("--").arg(hello()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let port = line.split(' ').find_map(|word| word.rsplit_once(':')?.1.parse::<u16>().ok()).unwrap();
        let mut node = disco();
        node.args(["worker", "--connect", &format!("{own}:{port}"), "--token-file"]).arg(&path);
        assert!(node.arg("--").arg(hello()).status().unwrap().success());
        assert!(run.wait().unwrap().success());
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        let warning = |all| {
            format!(
                "disco: only this machine reaches {own}:{port}; other machines join with `--listen {all}:{port}`, or DISCO_LISTEN"
            )
        };
        assert_eq!(rest, all.map(warning).into_iter().collect::<Vec<_>>(), "{listen:?}");
    }
}

/// The content of a worker's log files of standard output and standard error; `None` if a file is missing.
fn logs(folder: &Path, worker: usize) -> Option<[String; 2]> {
    let read = |name: &str| fs::read_to_string(folder.join(worker.to_string()).join(name)).ok();
    Some([read("stdout.log")?, read("stderr.log")?])
}

fn each_worker_has_log_files_that_a_second_run_appends_to() {
    let folder = Folder::new("logs");
    let logs_folder = folder.0.join("new").join("logs");
    for times in 1..=2 {
        let mut run = disco();
        run.env(PROGRAM, "say").args(["run", "--session", "processes", "--workers", "3", "--log-dir"]);
        let ran = run.arg(&logs_folder).arg("--").arg(hello()).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        let said = String::from_utf8(ran.stdout.clone()).unwrap();
        assert!(said.contains("[worker 2] worker 2 prints\n"), "output is also printed: {said}");
        for worker in 1..3 {
            let expected = ["prints", "warns"].map(|what| format!("worker {worker} {what}\n").repeat(times));
            assert_eq!(logs(&logs_folder, worker), Some(expected));
        }
        assert_eq!(logs(&logs_folder, 0), None, "worker 0 is a thread of the program");
    }
}

fn each_node_has_the_log_files_of_its_workers() {
    let folder = Folder::new("machines");
    let path = folder.token();
    let [here, there] = ["here", "there"].map(|name| folder.0.join(name));
    let mut run = disco();
    run.env(PROGRAM, "say").args(["run", "--nodes", "2", "--workers", "4", "--token-file"]).arg(&path);
    run.arg("--log-dir").arg(&here).arg("--").arg(hello()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let address = line.split(' ').find(|word| word.starts_with("127.0.0.1:")).unwrap();
    let mut node = disco();
    node.env(PROGRAM, "say").args(["worker", "--connect", address, "--token-file"]).arg(&path);
    assert!(node.arg("--log-dir").arg(&there).arg("--").arg(hello()).status().unwrap().success());
    assert!(run.wait().unwrap().success());
    let files = |folder: &Path| (0..4).filter(|worker| logs(folder, *worker).is_some()).collect::<Vec<_>>();
    assert_eq!((files(&here), files(&there)), (vec![1], vec![2, 3]));
    assert_eq!(logs(&there, 3), Some(["worker 3 prints\n", "worker 3 warns\n"].map(str::to_owned)));
}

fn an_unwritable_log_file_is_an_error_with_its_path() {
    let folder = Folder::new("no-logs");
    fs::write(folder.0.join("file"), "").unwrap();
    let mut run = disco();
    run.env(PROGRAM, "say").args(["run", "--session", "processes", "--workers", "2", "--log-dir"]);
    let ran = run.arg(folder.0.join("file")).arg("--").arg(hello()).output().unwrap();
    let expected = format!("log file {}/file/1 can't be written: Not a directory (os error 20)\n", folder.0.display());
    assert_eq!((ran.status.success(), err(&ran)), (false, expected));
}

fn run_rejects_unequal_nodes_and_a_missing_token_before_the_program_starts() {
    let run = |args: &[&str]| err(&disco().arg("run").args(args).args(["--", "echo", "started"]).output().unwrap());
    let text = run(&["--nodes", "2", "--workers", "3"]);
    assert_eq!(text, "disco: 3 workers on 2 nodes: each node has as many workers, and at least 1\n");
    let listens = ["run", "--nodes", "2", "--"];
    let text = err(&disco().args(listens).arg(hello()).output().unwrap());
    assert!(text.contains("a session whose nodes are started elsewhere needs a token"), "{text}");
}

fn worker_prints_why_it_can_not_join() {
    let worker = |args: &[&str]| {
        let output = disco().arg("worker").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        err(&output)
    };
    let text = worker(&["--connect", "127.0.0.1:1"]);
    assert!(text.contains("needs a token"), "{text}");
    let folder = Folder::new("worker");
    let path = folder.token();
    let text = worker(&["--connect", "127.0.0.1:1", "--wait", "0", "--token-file", path.to_str().unwrap()]);
    assert!(text.starts_with("disco: joining the controller at 127.0.0.1:1: no end after 0ns: "), "{text}");
    let text = worker(&["--connect", "127.0.0.1:1", "--token-file", "/nowhere"]);
    assert_eq!(text, "disco: token file /nowhere: No such file or directory (os error 2)\n");
    let text = worker(&["--connect", "127.0.0.1:1", "--", "no-such-program"]);
    assert_eq!(text, "disco: can't run `no-such-program`: No such file or directory (os error 2)\n");
}

fn a_worker_that_reconnects_serves_one_session_after_another() {
    let folder = Folder::new("reconnect");
    let path = folder.token();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut node = disco();
    node.args(["worker", "--reconnect", "--connect", &address, "--token-file"]).arg(&path).arg("--").arg(hello());
    let mut node = node.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(node.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut wait_for = |text: &str| said.by_ref().find(|line| line.contains(text)).unwrap();
    let run = |program: &str| {
        let mut run = disco();
        run.env(PROGRAM, program).args(["run", "--nodes", "2", "--listen", &address, "--token-file"]);
        run.arg(&path).arg("--").arg(hello()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };

    let mut killed = run("stall");
    let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "started"), "the first session has not started");
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_for("controller lost: it closed the connection");
    let next = "; waiting for the next session";
    assert_eq!(wait_for(next), format!("disco: the node has ended: exit status: 1{next}"));
    for _ in 0..2 {
        let served = run("hello").wait_with_output().unwrap();
        let text = String::from_utf8(served.stdout.clone()).unwrap();
        assert!(served.status.success() && text.contains("worker 1 of 2"), "{served:?}");
        assert_eq!(wait_for(next), format!("disco: the session is over{next}"));
    }

    let children = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", node.id())).unwrap();
    let child = waiting::wait_for("the next process of the node", || Some(children()).filter(|it| !it.is_empty()));
    kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
    node.wait().unwrap();
    let child = PathBuf::from(format!("/proc/{}/exe", child.trim()));
    waiting::wait_until("the end of the process of the node", || child.read_link().is_err());
}

/// The commands of docs/launching.md, with a network namespace per machine. Skipped if this user can't create
/// namespaces.
fn nodes_in_two_network_namespaces_form_one_session() {
    if !namespaces::may_make() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/two_machines.sh");
    let ran = Command::new("sh").env(PROGRAM, "hello").arg(script).arg(DISCO).arg(hello()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let said = String::from_utf8(ran.stdout).unwrap();
    let hosts: Vec<&str> = said.lines().filter_map(|line| line.split_once(" on disco-")?.1.get(..1)).collect();
    assert_eq!(hosts, ["a", "a", "b", "b"], "{said}");
}
