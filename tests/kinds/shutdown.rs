//! Shutdown and drop of a session: the results of concurrent waits, and its duration.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use disco::{Deadlines, Error, LaneSession, Result, Session as _, SessionKind, Value, WorkerId, block_on};
use futures_lite::future;
use rustix::process::{Pid, Signal, kill_process};

use crate::{SOON, builder, call, within};

crate::tests!(
    waits_end_when_shutdown_gives_up_on_a_stuck_worker,
    a_shutdown_after_a_missed_call_deadline_ends_before_the_close_limit,
    waits_for_commands_that_a_shutdown_overtook_end_when_the_workers_have_left,
    waits_for_a_worker_that_has_left_end_while_shutdown_waits_for_a_stuck_worker,
    waits_for_a_worker_killed_during_a_shutdown_end,
    replies_that_come_before_the_workers_leave_are_delivered,
    two_concurrent_shutdowns_end_together_with_the_same_error,
    shutdown_does_not_block_a_single_threaded_executor,
    looking_up_a_function_after_shutdown_is_an_error,
    dropping_a_session_with_a_busy_worker_returns_soon,
    dropping_a_session_with_a_stopped_worker_returns_soon,
    dropping_a_session_during_its_shutdown_returns_soon,
);

/// Time for other threads to submit their commands.
const SUBMIT_DELAY: Duration = Duration::from_secs(1);

/// Time for a shutdown to overtake commands.
const OVERTAKE_DELAY: Duration = Duration::from_millis(300);

/// A file that a worker creates when it enters a function.
struct Marker(PathBuf);

impl Marker {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("disco-kinds-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn wait(&self) {
        let start = Instant::now();
        while !Path::exists(&self.0) {
            assert!(start.elapsed() < SOON, "the worker did not enter the function");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

/// A session whose shutdown gives up after `close`, and whose worker 3 sleeps for `seconds`.
fn busy(kind: SessionKind, close: Duration, seconds: f64) -> Arc<LaneSession> {
    let session = builder(kind).deadlines(Deadlines::default().with_close(close)).start().unwrap();
    let marker = Marker::new();
    call(&session, "tests.sleep", (3, seconds, marker.path())).unwrap();
    marker.wait();
    Arc::new(session)
}

/// Makes a worker stay inside a function until the returned marker is dropped.
fn stay(session: &LaneSession, worker: i64) -> Marker {
    let marker = Marker::new();
    call(session, "tests.stay", (worker, marker.path())).unwrap();
    marker.wait();
    marker
}

/// Operations that wait on other threads, and their results.
struct Waits(Vec<(&'static str, thread::JoinHandle<Result<()>>)>);

impl Waits {
    fn start(session: &Arc<LaneSession>) -> Self {
        let number = call(session, "tests.count", (1,)).unwrap();
        let spawn = |work: fn(&LaneSession, &disco::DRef) -> Result<()>| {
            let (session, number) = (session.clone(), number.clone());
            thread::spawn(move || work(&session, &number))
        };
        let waits = vec![
            ("sync_all", spawn(|session, _| block_on(session.sync_all()))),
            ("sync_worker", spawn(|session, _| block_on(session.sync_worker(WorkerId::new(3))))),
            ("get", spawn(|session, number| block_on(session.get(number, WorkerId::new(3))).map(drop))),
            ("set", spawn(|session, number| block_on(session.set(number, WorkerId::new(3), 7.into())))),
        ];
        thread::sleep(SUBMIT_DELAY);
        Self(waits)
    }

    fn end(self) -> Vec<(&'static str, Result<()>)> {
        self.0.into_iter().map(|(name, wait)| (name, within(SOON, name, move || wait.join().unwrap()))).collect()
    }

    fn end_closed(self) {
        for (name, result) in self.end() {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Closed(_)), "{name}: {error}");
            assert_eq!(error.to_string(), format!("{name}: the session is shut down"));
        }
    }
}

fn waits_end_when_shutdown_gives_up_on_a_stuck_worker(kind: SessionKind) {
    let session = busy(kind, Duration::from_millis(300), 1000.0);
    let waits = Waits::start(&session);
    let error = block_on(session.shutdown()).unwrap_err().to_string();
    assert!(error.starts_with("not stopped after 300ms: worker 3 ("), "{error}");
    waits.end_closed();
}

fn a_shutdown_after_a_missed_call_deadline_ends_before_the_close_limit(kind: SessionKind) {
    let session = builder(kind).call_deadline(Duration::from_millis(500)).start().unwrap();
    let marker = Marker::new();
    call(&session, "tests.sleep", (3, 1000.0, marker.path())).unwrap();
    marker.wait();
    let error = block_on(session.sync_all()).unwrap_err().to_string();
    assert!(error.starts_with("sync_all: no end after 500ms: worker 3 does not answer: "), "{error}");
    assert!(error.ends_with(", inside `tests.sleep`"), "{error}");
    let error = within(SOON, "shutdown", move || block_on(session.shutdown())).unwrap_err().to_string();
    assert!(error.starts_with("not stopped after 3s: worker 3 ("), "{error}");
}

/// Submits calls until a lane is full and stays full.
fn fill(session: &LaneSession) {
    let function = block_on(session.function("tests.count")).unwrap();
    let (mut full, start) = (0, Instant::now());
    while full < 100 {
        assert!(start.elapsed() < SOON, "no lane is full");
        let mut args = disco::Arguments::default();
        args.push(1);
        match session.try_submit(&function, &mut args) {
            Some(handle) => {
                full = 0;
                drop(handle.unwrap());
            }
            None => {
                full += 1;
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

fn waits_for_commands_that_a_shutdown_overtook_end_when_the_workers_have_left(kind: SessionKind) {
    let session = Arc::new(builder(kind).start().unwrap());
    let inside = stay(&session, 3);
    let waits = Waits::start(&session);
    fill(&session);
    let shutdown = {
        let session = session.clone();
        thread::spawn(move || block_on(session.shutdown()))
    };
    thread::sleep(OVERTAKE_DELAY);
    drop(inside);
    within(SOON, "shutdown", move || shutdown.join().unwrap()).unwrap();
    waits.end_closed();
}

fn waits_for_a_worker_that_has_left_end_while_shutdown_waits_for_a_stuck_worker(kind: SessionKind) {
    let session = busy(kind, Duration::from_secs(60), 1000.0);
    let inside = stay(&session, 2);
    let wait = {
        let session = session.clone();
        thread::spawn(move || block_on(session.sync_worker(WorkerId::new(2))))
    };
    thread::sleep(SUBMIT_DELAY);
    fill(&session);
    // This shutdown waits for worker 3 until the end of the test.
    thread::spawn(move || block_on(session.shutdown()));
    thread::sleep(OVERTAKE_DELAY);
    drop(inside);
    let error = within(SOON, "sync_worker", move || wait.join().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "sync_worker: the session is shut down");
}

fn waits_for_a_worker_killed_during_a_shutdown_end(kind: SessionKind) {
    if kind == SessionKind::Threads {
        return;
    }
    let session = builder(kind).start().unwrap();
    let pid = call(&session, "tests.pid", ()).unwrap();
    let Value::Int(pid) = block_on(session.get(&pid, WorkerId::new(3))).unwrap() else { panic!() };
    let marker = Marker::new();
    call(&session, "tests.sleep", (3, 1000.0, marker.path())).unwrap();
    marker.wait();
    let session = Arc::new(session);
    let waits = Waits::start(&session);
    fill(&session);
    let shutdown = {
        let session = session.clone();
        thread::spawn(move || block_on(session.shutdown()))
    };
    thread::sleep(OVERTAKE_DELAY);
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    within(SOON, "shutdown", move || shutdown.join().unwrap()).unwrap();
    waits.end_closed();
}

fn replies_that_come_before_the_workers_leave_are_delivered(kind: SessionKind) {
    let session = busy(kind, Duration::from_secs(30), 1.0);
    let waits = Waits::start(&session);
    block_on(session.shutdown()).unwrap();
    for (name, result) in waits.end() {
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

fn two_concurrent_shutdowns_end_together_with_the_same_error(kind: SessionKind) {
    let session = busy(kind, Duration::from_secs(1), 1000.0);
    let start = Instant::now();
    let [first, second] = [0, 1].map(|_| {
        let session = session.clone();
        thread::spawn(move || (block_on(session.shutdown()), Instant::now()))
    });
    let ends = [first, second].map(|thread| within(SOON, "shutdown", move || thread.join().unwrap()));
    assert!(
        ends.iter().all(|(_, end)| *end >= start + Duration::from_secs(1)),
        "both waited for the workers: {ends:?}"
    );
    assert!(
        ends.iter().all(|(result, _)| matches!(result, Err(Error::Stuck { .. }))),
        "both name the stuck worker: {ends:?}"
    );
    block_on(session.shutdown()).unwrap();
}

fn shutdown_does_not_block_a_single_threaded_executor(kind: SessionKind) {
    let session = busy(kind, Duration::from_secs(30), 1.0);
    let is_done = Cell::new(false);
    let shutdown = async {
        session.shutdown().await.unwrap();
        is_done.set(true);
    };
    let other_task = async {
        let mut polls = 0;
        while !is_done.get() {
            polls += 1;
            thread::sleep(Duration::from_millis(1));
            future::yield_now().await;
        }
        polls
    };
    let ((), polls) = block_on(future::zip(shutdown, other_task));
    assert!(polls > 10, "the shutdown takes as long as the call of worker 3, and the task ran {polls} times");
}

fn looking_up_a_function_after_shutdown_is_an_error(kind: SessionKind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        session.function("tests.count").await.unwrap();
        session.shutdown().await.unwrap();
        for name in ["tests.count", "tests.sleep", "tests.absent"] {
            let error = session.function(name).await.unwrap_err().to_string();
            assert_eq!(error, "function lookup: the session is shut down");
        }
    });
}

fn dropping_a_session_with_a_busy_worker_returns_soon(kind: SessionKind) {
    let session = busy(kind, Duration::from_secs(30), 1000.0);
    within(SOON, "drop", move || drop(session));
}

fn dropping_a_session_during_its_shutdown_returns_soon(kind: SessionKind) {
    let session = busy(kind, Duration::from_secs(1000), 1000.0);
    assert!(block_on(future::poll_once(session.shutdown())).is_none());
    within(SOON, "drop", move || drop(session));
}

fn dropping_a_session_with_a_stopped_worker_returns_soon(kind: SessionKind) {
    let session = builder(kind).silence(Duration::from_secs(60)).start().unwrap();
    let marker = Marker::new();
    call(&session, "tests.freeze", (3, i64::from(std::process::id()), marker.path())).unwrap();
    marker.wait();
    within(SOON, "drop", move || drop(session));
}
