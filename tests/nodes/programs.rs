//! Nodes and other programs that tests start: this executable, with the name of the program in an environment variable.

use std::io::Read as _;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, thread};

use disco::{Builder, LaneSession, Session, SessionExt, SessionKind, Token, WorkerId, block_on};

/// Environment variable with the name of the program to run.
const PROGRAM: &str = "DISCO_TEST_PROGRAM";

/// The token of the sessions of these tests.
pub(crate) const TOKEN: &str = "what only the nodes of these tests know";
/// A token that no session of these tests accepts.
pub(crate) const OTHER_TOKEN: &str = "what the nodes of another session know";

/// Time that a step of a test may take before the test fails.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

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

/// Waits for the end of a process and returns its output. Kills it and panics if it does not end in time.
pub(crate) fn end(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > TEST_TIMEOUT {
            child.kill().unwrap();
            panic!("the process did not end: {:?}", child.wait_with_output().unwrap());
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// The standard error of a node that ends with status 1.
pub(crate) fn complaint(child: Child) -> String {
    let output = end(child);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A builder of a session of nodes with the token, whose workers are threads.
pub(crate) fn builder(nodes: usize, per_node: usize) -> Builder {
    let builder = Builder::nodes(nodes, per_node).node_workers(SessionKind::Threads).token(Token::new(TOKEN).unwrap());
    builder.start_deadline(TEST_TIMEOUT)
}

/// Starts the session, and meanwhile calls `join` with the address where it listens.
pub(crate) fn with<T>(builder: Builder, join: impl FnOnce(SocketAddr) -> T + Send) -> (disco::Result<LaneSession>, T)
where
    T: Send,
{
    let (tell, told) = mpsc::channel();
    let builder = builder.announce(move |announcement| {
        tell.send(announcement.address).unwrap();
        Ok(())
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
        let answer = session.call(&session.function(function).await.unwrap(), ()).await.unwrap();
        session.get_as(&answer, WorkerId::new(worker)).await.unwrap()
    })
}

/// Waits until a process has ended. It need not be a child of this process.
pub(crate) fn wait_for_end_of(pid: i64) {
    let start = Instant::now();
    let is_there = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // A zombie has ended.
        Ok(stat) => !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'),
        Err(_) => false,
    };
    while is_there() {
        assert!(start.elapsed() < TEST_TIMEOUT, "process {pid} does not end");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the program that the environment names.
pub(crate) fn run() -> Option<ExitCode> {
    // Nodes and workers inherit the environment of their program, so they reach this function, too.
    match env::var(PROGRAM).ok()?.as_str() {
        "printer" => printer("tests.print"),
        "tree-printer" => print_on(Builder::nodes(4, 1).fan_out(1), "tests.print"),
        "painter" => printer("tests.paint"),
        "controller" => controller(),
        "late" => late(),
        other => panic!("there is no program `{other}`"),
    }
    Some(ExitCode::SUCCESS)
}

/// Calls a function that prints, on the workers of a node.
fn printer(function: &str) {
    print_on(Builder::nodes(2, 2), function);
}

fn print_on(builder: Builder, function: &str) {
    disco::init();
    let session = builder.start().unwrap();
    block_on(async {
        session.call(&session.function(function).await.unwrap(), ()).await.unwrap();
        session.shutdown().await.unwrap();
    });
}

/// Prints the start error of a session whose node joins too late.
fn late() {
    if env::var_os("DISCO_CONNECT").is_some() {
        thread::sleep(Duration::from_millis(1500));
    }
    disco::init();
    println!("{}", Builder::nodes(2, 1).start_deadline(Duration::from_secs(1)).start().unwrap_err());
}

/// Prints the process ids of its workers and of their parents, the nodes, and waits to be killed.
fn controller() {
    disco::init();
    let session = Builder::nodes(3, 2).start().unwrap();
    for worker in 2..6 {
        println!("{} {}", ask(&session, "tests.pid", worker), ask(&session, "tests.parent", worker));
    }
    block_on(async {
        // Worker 3 is inside a function, the others are idle.
        session.call(&session.function("tests.sleep").await.unwrap(), (3, 1000.0)).await.unwrap();
    });
    println!("ready");
    _ = std::io::stdin().read(&mut [0]);
    thread::sleep(Duration::from_secs(1000));
}
