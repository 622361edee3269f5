//! Start of sessions of processes, and its errors.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use disco::{Builder, Invitation, Launch, SessionKind, Value, WorkerId};
use disco_channel::processes;
use disco_core::wire::VERSION;

use super::programs;
use crate::with_session::with_session;

super::tests!(
    a_session_of_one_worker_starts_no_process,
    a_missing_worker_program_is_an_error_with_its_path,
    a_worker_program_that_is_not_executable_is_an_error_with_its_path,
    a_worker_that_crashes_at_start_is_lost_with_its_signal,
    a_worker_program_without_init_is_an_error_that_names_init,
    workers_of_another_protocol_version_are_rejected,
    silent_workers_are_named_at_the_start_deadline,
    a_session_in_a_program_without_init_is_an_error_that_names_init,
    a_start_without_free_descriptors_is_an_error,
    without_shared_memory_commands_travel_over_sockets,
    a_worker_that_starts_a_session_of_processes_gets_an_error,
    a_session_apart_whose_workers_are_threads_is_refused,
    a_connection_of_another_user_is_rejected_by_the_controller,
    a_worker_sends_nothing_to_a_controller_of_another_user,
);

/// The start error of a session whose worker program is a script with this text and mode.
fn refused(text: &str, mode: u32) -> String {
    refused_script(programs::shell_script(text, mode))
}

fn refused_script((folder, path): (PathBuf, PathBuf)) -> String {
    let error = Builder::processes(3)
        .process_options(|processes| processes.launch = Some(Launch::program(&path, std::env::args_os().skip(1))))
        .start_deadline(Duration::from_secs(20))
        .start()
        .unwrap_err();
    fs::remove_dir_all(folder).unwrap();
    error.to_string().replace(path.to_str().unwrap(), "PROGRAM")
}

/// The start error of a session whose worker program is a program of `programs`.
fn refused_program(program: &str) -> String {
    refused_script(programs::script(program))
}

fn a_session_of_one_worker_starts_no_process() {
    with_session(Builder::processes(1), async |session| {
        let pid = session.call("tests.pid", ()).await.unwrap();
        let pid = session.value(&pid, WorkerId::new(0)).await.unwrap();
        assert_eq!(pid, Value::Int(std::process::id().into()));
    });
}

fn a_missing_worker_program_is_an_error_with_its_path() {
    let error = Builder::processes(2)
        .process_options(|processes| {
            processes.launch = Some(Launch::program("/nowhere/worker", std::env::args_os().skip(1)))
        })
        .start()
        .unwrap_err()
        .to_string();
    assert_eq!(error, "worker 1: /nowhere/worker can't be started: No such file or directory (os error 2)");
}

fn a_worker_program_that_is_not_executable_is_an_error_with_its_path() {
    assert_eq!(refused("", 0o644), "worker 1: PROGRAM can't be started: Permission denied (os error 13)");
}

fn a_worker_that_crashes_at_start_is_lost_with_its_signal() {
    let error = refused("kill -SEGV $$", 0o755);
    let (worker, why) = error.split_once(" lost: ").unwrap();
    assert!(["worker 1", "worker 2"].contains(&worker), "{error}");
    assert!(why.starts_with("its process ended: signal: 11 (SIGSEGV)"), "{error}");
}

fn a_worker_program_without_init_is_an_error_that_names_init() {
    let error = refused("exit 0", 0o755);
    let why = "its process ended: exit status: 0 before it connected; does its `main` call `disco::init()` first?";
    assert!(error.ends_with(why), "{error}");
}

fn workers_of_another_protocol_version_are_rejected() {
    let error = refused_program("old");
    let why = format!(
        "lost: bad packet: the other end speaks version 99, this one {VERSION}: both must run the same program"
    );
    assert!(error.starts_with("worker ") && error.ends_with(&why), "{error}");
}

fn silent_workers_are_named_at_the_start_deadline() {
    let (folder, path) = programs::script("silent");
    let error = Builder::processes(3)
        .process_options(|processes| processes.launch = Some(Launch::program(path, std::env::args_os().skip(1))))
        .start_deadline(Duration::from_millis(700))
        .start()
        .unwrap_err();
    fs::remove_dir_all(folder).unwrap();
    assert_eq!(error.to_string(), "start: no end after 700ms: worker 1, worker 2 did not connect");
}

fn output_of(program: &str) -> String {
    let output = programs::command(program).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{out}{err}");
    out
}

fn a_session_in_a_program_without_init_is_an_error_that_names_init() {
    let expected = "a session of processes executes this program again for each worker: call `disco::init()` first in \
                    `main`; in a `#[test]`, write `disco::init_test!();` as its first line\n";
    assert_eq!(output_of("without init"), expected);
}

fn a_start_without_free_descriptors_is_an_error() {
    let error = output_of("few descriptors");
    assert!(error.contains("Too many open files") || error.contains("No file descriptors"), "{error}");
}

fn without_shared_memory_commands_travel_over_sockets() {
    assert_eq!(output_of("little memory"), "works\n");
}

fn a_worker_that_starts_a_session_of_processes_gets_an_error() {
    with_session(Builder::processes(2), async |session| {
        let text = session.call("tests.session", ()).await.unwrap();
        let Value::Str(text) = session.value(&text, WorkerId::new(1)).await.unwrap() else { panic!() };
        assert_eq!(&*text, "a worker can't start a session of processes");
    });
}

/// The user `nobody`, for tests that root runs.
const NOBODY: u32 = 65534;

/// Starts a program as another user, or returns `None` if this user may not.
fn as_nobody(mut command: Command) -> Option<Child> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can run a program as another user");
        return None;
    }
    match command.uid(NOBODY).stdout(Stdio::piped()).spawn() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            println!("skipped: another user can't execute the programs of this folder");
            None
        }
        started => Some(started.unwrap()),
    }
}

fn a_connection_of_another_user_is_rejected_by_the_controller() {
    let (tell, told) = mpsc::channel();
    let builder = Builder::processes(2).start_deadline(Duration::from_secs(1)).process_options(|processes| {
        processes.launch = Some(Launch::elsewhere(move |invitation| {
            let mut intruder = programs::command("ahead of its epoch");
            intruder.env("DISCO_WORKER", invitation.text());
            tell.send(as_nobody(intruder)).unwrap();
            Ok(())
        }))
    });
    let error = builder.start().unwrap_err().to_string();
    assert_eq!(error, "start: no end after 1s: worker 1 did not connect");
    if let Some(mut child) = told.recv().unwrap() {
        child.wait().unwrap();
    }
}

fn a_worker_sends_nothing_to_a_controller_of_another_user() {
    let name = format!("disco-test-{}", std::process::id());
    let mut listener = programs::command("listener");
    listener.arg(&name);
    let Some(mut listener) = as_nobody(listener) else { return };
    let mut said = BufReader::new(listener.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    let invitation = Invitation::parse(&format!("1:{name}:0123456789abcdef")).unwrap();
    let error = processes::serve(&invitation, |_, _, _| Ok(())).unwrap_err().to_string();
    assert_eq!(error, "the controller lost: worker 1 can't connect to it: its socket is another user's");
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "0 bytes\n");
    assert!(listener.wait().unwrap().success());
}

fn a_session_apart_whose_workers_are_threads_is_refused() {
    let refused = |builder: Builder| builder.apart(true).start().unwrap_err().to_string();
    assert_eq!(
        refused(Builder::threads(2)),
        "`apart` makes worker 0 a process, but the workers of this session are threads"
    );
    assert_eq!(
        refused(Builder::nodes(2, 1).node_options(|nodes| nodes.workers = SessionKind::Threads)),
        "`apart` makes worker 0 a process, but the workers of its nodes are threads"
    );
}
