//! Nodes and other programs that tests start: this one again, with a variable that says which.

use std::io::Read as _;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, thread};

use disco::{Builder, LaneSession, Session, SessionExt, SessionKind, Token, WorkerId, block_on};

/// Says which program this is.
const PROGRAM: &str = "DISCO_TEST_PROGRAM";

/// The token of these sessions, and another.
pub(crate) const TOKEN: &str = "what only the nodes of these tests know";
pub(crate) const OTHER: &str = "what the nodes of another session know";

/// How long something may take that is under way.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// This program as another one.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(PROGRAM, program).stdin(Stdio::null());
    command
}

/// A node that joins at an address.
pub(crate) fn node(address: impl ToString) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env("DISCO_CONNECT", address.to_string()).env("DISCO_TOKEN", TOKEN);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a process says and returns, in time; one that does not end is killed.
pub(crate) fn end(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it does not end: {:?}", child.wait_with_output().unwrap());
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

/// A session of nodes with the token, whose workers are threads, that gives up soon.
pub(crate) fn builder(nodes: usize, per_node: usize) -> Builder {
    let builder = Builder::nodes(nodes, per_node).node_workers(SessionKind::Threads).token(Token::new(TOKEN).unwrap());
    builder.start_deadline(PATIENCE)
}

/// Starts the session, and calls `join` with where it listens while it waits.
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

/// A session with one other node, which is this program as it is.
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

/// Waits until a process is gone, whoever is its parent.
pub(crate) fn wait_for_end_of(pid: i64) {
    let start = Instant::now();
    let is_there = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // Ended, and nobody has asked how.
        Ok(stat) => !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'),
        Err(_) => false,
    };
    while is_there() {
        assert!(start.elapsed() < PATIENCE, "process {pid} does not end");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the program that the environment names.
pub(crate) fn run() -> Option<ExitCode> {
    // Nodes and workers of a program are started with its variables.
    match env::var(PROGRAM).ok()?.as_str() {
        "printer" => printer("tests.print"),
        "painter" => printer("tests.paint"),
        "controller" => controller(),
        "late" => late(),
        other => panic!("there is no program `{other}`"),
    }
    Some(ExitCode::SUCCESS)
}

/// Prints through the workers of a node.
fn printer(function: &str) {
    disco::init();
    let session = Builder::nodes(2, 2).start().unwrap();
    block_on(async {
        session.call(&session.function(function).await.unwrap(), ()).await.unwrap();
        session.shutdown().await.unwrap();
    });
}

/// Prints why it has no session: its node comes too late.
fn late() {
    if env::var_os("DISCO_CONNECT").is_some() {
        thread::sleep(Duration::from_millis(1500));
    }
    disco::init();
    println!("{}", Builder::nodes(2, 1).start_deadline(Duration::from_secs(1)).start().unwrap_err());
}

/// Prints the processes of its nodes and their workers, and waits to be killed.
fn controller() {
    disco::init();
    let session = Builder::nodes(3, 2).start().unwrap();
    for worker in 2..6 {
        println!("{} {}", ask(&session, "tests.pid", worker), ask(&session, "tests.parent", worker));
    }
    block_on(async {
        // One worker is idle, one in a function.
        session.call(&session.function("tests.sleep").await.unwrap(), (3, 1000.0)).await.unwrap();
    });
    println!("ready");
    _ = std::io::stdin().read(&mut [0]);
    thread::sleep(Duration::from_secs(1000));
}
