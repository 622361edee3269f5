//! Nodes and other programs that tests start: this executable, with the name of the program in an environment variable.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fs, thread};

use disco::{Announce, Builder, Invitation, JoinOptions, LaneSession, SessionKind, Token, WorkerId, block_on};
use disco_conformance::waiting;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::with_session::with_session;

/// Environment variable with the name of the program to run.
const PROGRAM: &str = "DISCO_TEST_PROGRAM_OF_NODES";
/// Name of the program of [`node_of`], before the number of workers.
const NODE_OF: &str = "node-of-";

/// Environment variable of the program of [`brittle`].
const BREAKS: &str = "DISCO_TEST_BREAKS";

/// The token of the sessions of these tests.
pub(crate) const TOKEN: &str = "what only the nodes of these tests know";
/// A token that no session of these tests accepts.
pub(crate) const OTHER_TOKEN: &str = "what the nodes of another session know";

/// A heartbeat interval after which a session's status knows what a worker is inside.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(50);

/// Time that a step of a test may take before the test fails.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The end of the line that a node prints when it has waited for other nodes for a second.
pub(crate) const HAS_JOINED: &str = ", waiting for other nodes\n";

/// A command that runs this executable as `program`.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(PROGRAM, program).stdin(Stdio::null());
    command
}

/// A command that runs this executable as a node that joins at `address`.
pub(crate) fn node(address: impl ToString) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env("DISCO_CONNECT", address.to_string()).env("DISCO_TOKEN", TOKEN);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Makes the workers of a node end with status 7 before they connect, while this file exists. If it has the name of a second
/// file, they write the id of their process there, and hang.
pub(crate) fn brittle<'a>(node: &'a mut Command, file: &Path) -> &'a mut Command {
    node.env(PROGRAM, "brittle").env(BREAKS, file)
}

/// Waits for the end of a process and returns its output. Kills it and panics if it does not end in time.
pub(crate) fn end(mut child: Child) -> Output {
    if waiting::poll(TEST_TIMEOUT, || child.try_wait().unwrap()).is_none() {
        child.kill().unwrap();
        panic!("the process did not end: {:?}", child.wait_with_output().unwrap());
    }
    child.wait_with_output().unwrap()
}

/// Reads the standard error of a process up to the end of `text`, and returns the part that was read.
pub(crate) fn read_until(child: &mut Child, text: &str) -> String {
    let (mut said, mut byte) = (Vec::new(), [0]);
    // One byte at a time, so that `end` finds the rest.
    while !said.ends_with(text.as_bytes()) {
        let count = child.stderr.as_mut().unwrap().read(&mut byte).unwrap();
        assert_eq!(count, 1, "no `{text}` in {:?}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    String::from_utf8(said).unwrap()
}

/// The standard error of a node that ends with status 1.
pub(crate) fn complaint(child: Child) -> String {
    let output = end(child);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A builder of a session of nodes with the token, whose workers are threads.
pub(crate) fn builder(nodes: usize, per_node: usize) -> Builder {
    let builder = Builder::nodes(nodes, per_node).node_options(|nodes| {
        nodes.workers = SessionKind::Threads;
        nodes.token = Some(Token::new(TOKEN).unwrap());
    });
    builder.start_deadline(TEST_TIMEOUT)
}

/// Starts the session, and meanwhile calls `join` with the address where it listens.
pub(crate) fn with<T>(builder: Builder, join: impl FnOnce(SocketAddr) -> T + Send) -> (disco::Result<LaneSession>, T)
where
    T: Send,
{
    let (tell, told) = mpsc::channel();
    let builder = builder.node_options(|nodes| {
        nodes.announce = Some(Announce::new(move |announcement| {
            tell.send(announcement.address).unwrap();
            Ok(())
        }))
    });
    thread::scope(|scope| {
        let joined = scope.spawn(move || join(told.recv().unwrap()));
        let session = builder.start();
        (session, joined.join().unwrap())
    })
}

/// A session with one other node, which is this executable.
pub(crate) fn pair(builder: Builder) -> (LaneSession, Child) {
    let (session, child) = with(builder, |address| node(address).spawn().unwrap());
    (session.unwrap(), child)
}

/// A worker's answer to a function without arguments.
pub(crate) fn ask(session: &LaneSession, function: &str, worker: u32) -> i64 {
    block_on(async {
        let answer = session.call(function, ()).await.unwrap();
        session.get(&answer, WorkerId::new(worker)).await.unwrap()
    })
}

/// Waits until a process has ended. It need not be a child of this process.
pub(crate) fn wait_for_end_of(pid: i64) {
    let has_ended = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // A zombie has ended.
        Ok(stat) => stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'),
        Err(_) => true,
    };
    waiting::wait_until(&format!("the end of process {pid}"), has_ended);
}

/// Runs the program that the environment names.
pub(crate) fn run() -> Option<ExitCode> {
    // Nodes and workers inherit the environment of their program, so they reach this function, too.
    match env::var(PROGRAM).ok()?.as_str() {
        "printer" => printer("nodes.print"),
        "tree-printer" => print_on(Builder::nodes(4, 1).node_options(|nodes| nodes.fan_out = Some(1)), "nodes.print"),
        "painter" => printer("tests.paint"),
        "controller" => controller(Builder::nodes(3, 2)),
        "few files" => few_files(),
        "brittle" => {
            if Invitation::is_there()
                && let Ok(second) = fs::read_to_string(env::var_os(BREAKS).unwrap())
            {
                if second.is_empty() {
                    return Some(ExitCode::from(7));
                }
                fs::write(second, std::process::id().to_string()).unwrap();
                waiting::hang();
            }
            disco::init();
        }
        other => match other.strip_prefix(NODE_OF) {
            Some(workers) => join(workers.parse().unwrap()),
            None => panic!("there is no program `{other}`"),
        },
    }
    Some(ExitCode::SUCCESS)
}

/// Starts a session with as many open files as its argument says, and prints the error.
fn few_files() {
    disco::init();
    let limit = env::args().next_back().unwrap().parse().ok();
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let session = Builder::new(SessionKind::Nodes, 2).start_deadline(Duration::from_secs(1)).start();
    println!("{}", session.map_or_else(|error| error.to_string(), |_| "works".to_owned()));
}

/// Calls a function that prints, on the workers of a node.
fn printer(function: &str) {
    print_on(Builder::nodes(2, 2), function);
}

fn print_on(builder: Builder, function: &str) {
    disco::init();
    with_session(builder, async |session| {
        session.call(function, ()).await.unwrap();
    });
}

/// Joins as a node of this number of workers. Prints the error.
fn join(workers: u32) {
    let mut options = JoinOptions::new(env::var("DISCO_CONNECT").unwrap(), Token::required().unwrap());
    options.per_node = Some(workers);
    options.is_spare = env::var_os("DISCO_SPARE").is_some();
    let error = disco::join(&options).unwrap_err();
    eprintln!("disco: {error}");
    std::process::exit(1);
}

/// Silence limit of the sessions of the programs `controller` and `tree-controller`, also on a busy machine.
const CONTROLLER_SILENCE: Duration = Duration::from_secs(2);

/// Prints the process ids of its workers and of their parents, the nodes, and waits to be killed.
fn controller(builder: Builder) {
    disco::init();
    let session = builder.silence(CONTROLLER_SILENCE).start().unwrap();
    for worker in 2..6 {
        println!("{} {}", ask(&session, "tests.pid", worker), ask(&session, "tests.parent", worker));
    }
    block_on(async {
        // Worker 3 is inside a function, the others are idle.
        session.call("tests.hang", (3,)).await.unwrap();
    });
    println!("ready");
    _ = std::io::stdin().read(&mut [0]);
    waiting::hang();
}
