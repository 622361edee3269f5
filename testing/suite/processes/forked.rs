//! Forks of the controller's process: the child has a copy of the session, and the workers stay with the parent.

#![allow(unsafe_code)]

use std::env;
use std::process::{self, exit};

use disco::{Builder, Error, LaneSession, Result, SessionKind, Value, WorkerContext, WorkerId, block_on};
use disco_channel::programs as answering;
use disco_conformance::waiting::wait_for;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::programs;

super::tests!(
    "forked":
    a_child_that_drops_a_session_of_threads_leaves_the_workers_to_its_parent,
    a_child_that_drops_a_session_of_processes_leaves_the_workers_to_its_parent,
    a_child_that_drops_a_session_of_nodes_leaves_the_workers_to_its_parent,
);

fn a_child_that_drops_a_session_of_threads_leaves_the_workers_to_its_parent() {
    check("threads");
}

fn a_child_that_drops_a_session_of_processes_leaves_the_workers_to_its_parent() {
    check("processes");
}

fn a_child_that_drops_a_session_of_nodes_leaves_the_workers_to_its_parent() {
    check("nodes");
}

fn check(kind: &str) {
    let output = programs::command("forked").arg(kind).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "works\n", "{}", String::from_utf8_lossy(&output.stderr));
}

disco::register_function!("forked.count", count);

/// Emits more numbers than the controller may leave.
fn count(ctx: &mut WorkerContext) -> Result<()> {
    (0..NUMBERS).try_for_each(|number| ctx.emit(number))
}

const NUMBERS: i64 = 40;

unsafe extern "C" {
    fn fork() -> i32;
}

/// Runs `work` in a forked child, and waits until the child has exited.
fn in_child(work: impl FnOnce()) {
    // SAFETY: the child waits for no thread of this process.
    let child = unsafe { fork() };
    if child == 0 {
        work();
        exit(0);
    }
    let ended = wait_for("the end of the child", || waitpid(Pid::from_raw(child), WaitOptions::NOHANG).unwrap());
    assert_eq!(ended.1.exit_status(), Some(0), "the child fails");
}

/// The program `forked`: children end their copies of the session, and the program uses the session.
pub(crate) fn run() {
    disco::init();
    let kind = env::args().next_back().unwrap();
    let builder = match &kind[..] {
        "threads" => Builder::threads(4),
        "processes" => Builder::processes(4).process_options(|processes| processes.spares = 1),
        _ => Builder::new(SessionKind::Nodes, 4),
    };
    let mut session = Some(builder.start().unwrap());
    in_child(|| drop(session.take()));
    use_session(session.as_ref().unwrap());
    in_child(|| {
        let error = block_on(session.as_ref().unwrap().shutdown()).unwrap_err();
        assert!(matches!(&error, Error::State(why) if why.contains("forked")), "{error}");
        use_session(&Builder::threads(4).start().unwrap());
    });
    use_session(session.as_ref().unwrap());
    if kind == "processes" {
        let session = session.as_ref().unwrap();
        wait_for("the spare", || session.status().spares.iter().any(|spare| spare.is_ready).then_some(()));
    }
    block_on(session.unwrap().shutdown()).unwrap();
    println!("works");
}

fn use_session(session: &LaneSession) {
    block_on(async {
        let length = session.call("tests.length", ("four",)).await.unwrap();
        for worker in 0..4 {
            assert_eq!(session.value(&length, WorkerId::new(worker)).await.unwrap(), Value::Int(4));
        }
        let count = session.function("forked.count").await.unwrap();
        let mut results = Some(session.call_streaming(&count, ()).await.unwrap());
        in_child(|| drop(results.take()));
        let mut numbers = 0;
        while let Some(result) = results.as_mut().unwrap().next().await {
            result.unwrap();
            numbers += 1;
        }
        assert_eq!(numbers, 4 * NUMBERS);
    });
    assert_eq!(answering::ask(process::id()).unwrap().sessions.len(), 1);
}
