//! Programs that tests start: this executable, with the name of the program in an environment variable.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use disco::error::ErrorKind;
use disco::{Builder, Deadlines, Error, Invitation, LaneSession, Value, WorkerId, block_on};
use disco_conformance::waiting;
use disco_core::wire::{Hello, Message, StoreCall};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};

use crate::with_session::with_session;
use crate::workers::NOBODY;

/// Environment variable with the name of the program to run.
const PROGRAM: &str = "DISCO_TEST_PROGRAM";

/// A command that runs this executable as `program`.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(PROGRAM, program).stdin(Stdio::null());
    command
}

/// Writes a shell script into a new folder; returns the folder and the script.
pub(crate) fn shell_script(text: &str, mode: u32) -> (PathBuf, PathBuf) {
    let folder = env::temp_dir().join(format!("disco-start-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("worker");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    (folder, path)
}

/// Writes a script that runs this executable as `program`.
pub(crate) fn script(program: &str) -> (PathBuf, PathBuf) {
    shell_script(&format!("{PROGRAM}=\"{program}\" exec {}", env::current_exe().unwrap().display()), 0o755)
}

/// Runs the program that the environment names.
pub(crate) fn run() -> Option<ExitCode> {
    // Workers inherit the environment of their program, so they reach this function, too.
    match env::var(PROGRAM).ok()?.as_str() {
        "controller" => controller(),
        "forked" => super::forked::run(),
        "few descriptors" => limited(Resource::Nofile, 24),
        "little memory" => limited(Resource::As, 2 << 30),
        "without init" => without_init(),
        "old" => old(),
        "silent" => raw(b""),
        "ahead of its epoch" => {
            misbehaving(Message::StoreRequest { id: 1, epoch: 5, call: StoreCall::Get("key".into()) })
        }
        "in another's name" => misbehaving(Message::Unshare(7 << 32)),
        "invited" => invited(),
        "listener" => listener(),
        "mpi" => mpi(),
        "nccl" => super::nccl::run(),
        "memory" => super::memory::run(),
        "printer" => printer("output"),
        "painter" => printer(ESCAPES),
        "noise" => noise(),
        "logger" => logger(),
        other => panic!("there is no program `{other}`"),
    }
    Some(ExitCode::SUCCESS)
}

/// Prints the process ids of its workers and waits to be killed.
fn controller() {
    disco::init();
    let session = Builder::processes(4).start().unwrap();
    block_on(async {
        let pids = session.call("tests.pid", ()).await.unwrap();
        for worker in 1..4 {
            println!("{}", session.value(&pids, WorkerId::new(worker)).await.unwrap());
        }
        // Worker 2 is inside a function, the others are idle.
        session.call("tests.hang", (2,)).await.unwrap();
    });
    println!("ready");
    waiting::hang();
}

/// Starts a session under a resource limit; prints `works` or the error.
fn limited(what: Resource, limit: u64) {
    disco::init();
    setrlimit(what, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    match Builder::processes(8).start() {
        Ok(session) => {
            let length = block_on(async {
                let length = session.call("tests.length", ("four",)).await?;
                session.value(&length, WorkerId::new(7)).await
            });
            assert_eq!(length.unwrap(), Value::Int(4));
            block_on(session.shutdown()).unwrap();
            println!("works");
        }
        Err(error) => println!("{error}"),
    }
}

/// Starts a session without `disco::init()` and prints the error.
fn without_init() {
    println!("{}", Builder::processes(2).start().unwrap_err());
}

/// Escape sequences that change the color and the title of a terminal, and ring its bell.
pub(crate) const ESCAPES: &str = "\x1b[31mred\u{9b}0m \x1b]0;title\x07";

/// Prints on its workers.
fn printer(text: &str) {
    disco::init();
    with_session(Builder::processes(3), async |session| {
        session.call("tests.print", (text,)).await.unwrap();
    });
}

/// Logs a tracing event on each worker.
fn logger() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).without_time().init();
    disco::init();
    with_session(Builder::processes(3), async |session| {
        session.call("tests.log", ()).await.unwrap();
    });
}

/// Shuts down a session whose worker prints to a pipe that is not read; prints the error.
fn noise() {
    disco::init();
    let deadlines = Deadlines::default().with_close(Duration::from_millis(500));
    let session = Builder::processes(2).deadlines(deadlines).start().unwrap();
    block_on(async {
        session.call("tests.noise", ()).await.unwrap();
        eprintln!("{}", session.shutdown().await.unwrap_err());
    });
}

/// The invitation of this process: worker id, socket and token.
fn invitation() -> (u32, String, Vec<u8>) {
    let text = env::var("DISCO_WORKER").unwrap();
    let mut parts = text.split(':');
    let (worker, socket, token) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let token = (0..token.len()).step_by(2).map(|at| u8::from_str_radix(&token[at..at + 2], 16).unwrap());
    (worker.parse().unwrap(), socket.to_owned(), token.collect())
}

fn connect() -> UnixStream {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(invitation().1).unwrap()).unwrap()
}

/// A worker with another version of the protocol.
fn old() {
    let (worker, _, token) = invitation();
    let hello = Hello { token: token.into(), worker: WorkerId::new(worker), thread: 1, functions: Vec::new() };
    let mut packet = Message::Hello(hello).encode().unwrap();
    let magic = packet.windows(16).position(|bytes| bytes == b"disco connection").unwrap();
    // The magic is followed by the type of the version, then the version.
    packet[magic + 16 + 4] = 99;
    let mut stream = connect();
    stream.write_all(&packet).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
}

/// A worker that sends a valid hello, and then a message that no worker sends.
fn misbehaving(message: Message) {
    let (worker, _, token) = invitation();
    let functions = disco_core::function::names().into_iter().map(str::to_owned).collect();
    let hello = Hello { token: token.into(), worker: WorkerId::new(worker), thread: 1, functions };
    let mut stream = connect();
    for message in [Message::Hello(hello), message] {
        // Fails if the controller has already closed the connection.
        _ = stream.write_all(&message.encode().unwrap());
    }
    _ = stream.read_to_end(&mut Vec::new());
}

/// Makes an MPI rank end or stop inside an all-reduce, exits with all ranks inside one, or sends a message that is too
/// short, depending on its argument; prints the error.
fn mpi() {
    disco::init();
    let how = env::args().next_back().unwrap();
    let builder = Builder::processes(3);
    // Ranks that wait in MPI take the processors of others, so only the test of a stopped rank expects them to answer soon.
    let builder = if how == "STOP" { builder.silence(Duration::from_millis(700)) } else { builder };
    let session = builder.start().unwrap();
    block_on(async {
        if how == "subset" {
            let subset = session.subset([2, 0], 1).await.unwrap();
            let refused = subset.init_ccl("mpi", &[]).await.unwrap_err();
            subset.init_ccl("local", &[]).await.unwrap();
            // The refusal leaves MPI to the parent.
            session.init_ccl("mpi", &[]).await.unwrap();
            println!("{refused}");
            return session.shutdown().await.unwrap();
        }
        session.init_ccl("mpi", &[]).await.unwrap();
        if how == "leave" {
            session.call("tests.reduce", (1 << 20, 1_000_000, NOBODY)).await.unwrap();
            std::process::exit(3);
        }
        if how == "again" {
            session.call("tests.panic", (1,)).await.unwrap();
            session.sync_all().await.unwrap_err();
            session.init_ccl("mpi", &[]).await.unwrap();
            session.call("tests.reduce", (1 << 10, 3, NOBODY)).await.unwrap();
            session.sync_all().await.unwrap();
            println!("reduced again");
            return session.shutdown().await.unwrap();
        }
        if how == "shrink" {
            session.resize(2).await.unwrap();
            session.init_ccl("mpi", &[]).await.unwrap();
            session.call("tests.reduce", (1 << 10, 3, NOBODY)).await.unwrap();
            session.sync_all().await.unwrap();
            println!("reduced by {} ranks", session.world().size());
            return session.shutdown().await.unwrap();
        }
        if how == "cancel" {
            cancel_over_mpi(&session).await;
            return session.shutdown().await.unwrap();
        }
        if how == "reduce" {
            reduce_over_mpi(&session).await;
            return session.shutdown().await.unwrap();
        }
        if how == "short" {
            session.call("tests.unequal", ()).await.unwrap();
            println!("{}", session.sync_all().await.unwrap_err());
            return session.shutdown().await.unwrap();
        }
        println!("{}", lose_a_rank(&session, &how).await);
        session.shutdown().await.unwrap();
    });
}

/// Cancels calls that split communicators, and calls that not all ranks have begun, at moments that differ.
async fn cancel_over_mpi(session: &LaneSession) {
    let pause = |microseconds| thread::sleep(Duration::from_micros(microseconds));
    for round in 0..12 {
        let call = session.call("tests.split_on", (20_000,)).await.unwrap();
        pause(900 * round);
        session.cancel(&call, "enough").unwrap();
        for worker in session.world().workers() {
            assert_eq!(session.value(&call, worker).await.unwrap_err().kind(), ErrorKind::Cancelled);
        }
        session.init_ccl("mpi", &[]).await.unwrap();
        for late in [1, 2] {
            session.call("tests.sleep", (late, 0.002)).await.unwrap();
        }
        let call = session.call("tests.sum_of", (1000,)).await.unwrap();
        let next = session.call("tests.sum_of", (1,)).await.unwrap();
        pause(1700 + 50 * round);
        session.cancel(&call, "not needed").unwrap();
        match session.get_all::<i64>(&next).await {
            Ok(sums) => assert_eq!(sums, [3; 3], "round {round}"),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Broken | ErrorKind::Aborted), "{error}"),
        }
        session.init_ccl("mpi", &[]).await.unwrap();
    }
    println!("cancelled");
}

/// Reductions with NaN, and reductions of the program in which ranks disagree.
async fn reduce_over_mpi(session: &LaneSession) {
    let mut texts = Vec::new();
    for how in ["max", "min", "names", "rows", "counts"] {
        let reduced = session.call("tests.reduce_as", (how,)).await.unwrap();
        match session.get_all::<String>(&reduced).await {
            Ok(all) => {
                assert!(all.iter().all(|text| *text == all[0]), "{all:?}");
                texts.push(format!("{how}: {}", all[0]));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{how}: {error}");
                texts.push(format!("{how}: ranks disagree"));
                session.init_ccl("mpi", &[]).await.unwrap();
            }
        }
    }
    println!("{}", texts.join("; "));
}

/// Makes a rank end or stop inside an all-reduce, and returns the error.
async fn lose_a_rank(session: &LaneSession, how: &str) -> Error {
    let pids = session.call("tests.pid", ()).await.unwrap();
    let victim = if how == "renumber" { 1 } else { 2 };
    let Value::Int(pid) = session.value(&pids, WorkerId::new(victim)).await.unwrap() else { panic!() };
    let pid = Pid::from_raw(pid as i32).unwrap();
    let [reduce, exit] = [session.function("tests.reduce").await, session.function("tests.exit").await];
    if how == "exit" {
        session.call(&exit.unwrap(), (2, 3)).await.unwrap();
    }
    // Fails if the loss is already known.
    _ = session.call(&reduce.unwrap(), (1 << 20, 1_000_000, NOBODY)).await;
    if how != "exit" {
        waiting::wait_until_in_collective(session, 0..3);
    }
    match how {
        "KILL" | "replace" | "renumber" => kill_process(pid, Signal::KILL).unwrap(),
        "STOP" => kill_process(pid, Signal::STOP).unwrap(),
        _ => {}
    }
    let mut error = session.sync_all().await.unwrap_err();
    if how == "replace" {
        session.replace_lost().await.unwrap();
        error = session.init_ccl("mpi", &[]).await.unwrap_err();
    }
    if how == "renumber" {
        session.resize(2).await.unwrap();
        error = session.init_ccl("mpi", &[]).await.unwrap_err();
    }
    error
}

/// A worker that gets its invitation as an argument.
fn invited() {
    disco::init();
    let invitation = Invitation::parse(&env::args().next_back().unwrap()).unwrap();
    assert!(!Invitation::is_there());
    disco::serve(&invitation).unwrap();
}

/// Listens on a socket like a controller, and prints the number of bytes received.
fn listener() {
    let name = env::args().next_back().unwrap();
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    println!("listens");
    let mut said = Vec::new();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    _ = stream.read_to_end(&mut said);
    println!("{} bytes", said.len());
}

/// A worker that sends `bytes` instead of a hello, and reads to the end.
fn raw(bytes: &[u8]) {
    let mut stream = connect();
    // Fails if the controller has already closed the connection.
    _ = stream.write_all(bytes);
    _ = stream.read_to_end(&mut Vec::new());
}
