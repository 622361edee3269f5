//! Threads that sessions leave behind, and memory of calls behind a stuck worker. The test has its own process, because it
//! counts the threads and the memory of the process.

use std::fs;
use std::time::Duration;

use disco::{Builder, Deadlines, Error, WorkerContext, WorkerId, block_on};
use disco_conformance::waiting::poll;

use crate::gate::Gate;
use crate::own_process;

fn take_4(_: &mut WorkerContext, _: i64, _: f64, _: String, _: Option<()>) -> disco::Result<()> {
    Ok(())
}

disco::register_function!("tests.take_4", take_4);

/// Names of this process's threads that Disco started.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("disco-")).collect()
}

/// [`threads`], as soon as they equal `expected`, or after 5 s: the system lists a thread for a moment after it was
/// joined.
fn threads_within_5_s(expected: &[&str]) -> Vec<String> {
    let found = poll(Duration::from_secs(5), || Some(threads()).filter(|found| found == expected));
    found.unwrap_or_else(threads)
}

/// Resident memory in bytes.
fn resident() -> usize {
    let pages: usize = fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn sessions_leave_few_resources() {
    let name = "sessions_leave_only_stuck_threads_and_calls_behind_a_stuck_worker_take_little_memory";
    own_process::run(&format!("resources::{name}"), |_| {});
}

#[test]
#[ignore = "run by the test above in another process"]
fn sessions_leave_only_stuck_threads_and_calls_behind_a_stuck_worker_take_little_memory() {
    clean_failed_and_dropped_sessions();
    assert_eq!(threads_within_5_s(&[]), [""; 0]);
    let gate = Gate::new();
    stuck_session(&gate);
    assert_eq!(threads_within_5_s(&["disco-worker-1"]), ["disco-worker-1"]);
    gate.open();
}

fn clean_failed_and_dropped_sessions() {
    for round in 0..20 {
        let session = Builder::threads(3).start().unwrap();
        block_on(async {
            session.init_ccl("local", &[]).await.unwrap();
            if round % 2 == 1 {
                session.call("tests.panic_on", (2,)).await.unwrap();
                session.sync_all().await.unwrap_err();
            }
            if round % 3 == 0 {
                session.shutdown().await.unwrap();
            }
        });
    }
}

fn stuck_session(gate: &Gate) {
    let deadlines = Deadlines::default().with_stall(Duration::from_millis(200)).with_close(Duration::from_millis(200));
    let session = Builder::threads(4).deadlines(deadlines).start().unwrap();
    block_on(async {
        let take_4 = session.function("tests.take_4").await.unwrap();
        let object = session.call("tests.wait_on", (1, gate.id())).await.unwrap();
        session.sync_worker(WorkerId::new(0)).await.unwrap();
        let before = resident();
        let error = loop {
            if let Err(error) = session.call(&take_4, (1, 2.0, "three", &object)).await {
                break error;
            }
        };
        assert!(matches!(error, Error::Stalled { .. }), "{error}");
        let grown = resident().saturating_sub(before);
        println!("calls behind a stuck worker take {} KiB", grown >> 10);
        assert!(grown <= 16 << 20, "calls behind a stuck worker take {grown} bytes");
        session.shutdown().await.unwrap_err();
    });
}
