//! Shutdown and drop of a session: the results of concurrent waits, and its duration.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use disco::{Deadlines, Error, LaneSession, Result, Submission, Value, WorkerId, block_on};
use disco_conformance::waiting::{poll, wait_until};
use futures_lite::future;
use rustix::process::{Pid, Signal, kill_process};

use super::marker::{Marker, hang, stay};
use super::{Kind, SOON, builder, call, within};

super::tests!(
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
    dropping_a_session_during_its_shutdown_waits_for_its_timeline,
);

/// A session whose shutdown gives up after `close`.
fn closing_after(kind: Kind, close: Duration) -> LaneSession {
    builder(kind).deadlines(Deadlines::default().with_close(close)).start().unwrap()
}

/// A session whose shutdown gives up after `close`, and whose worker 3 hangs.
fn busy(kind: Kind, close: Duration) -> Arc<LaneSession> {
    let session = closing_after(kind, close);
    hang(&session, 3);
    Arc::new(session)
}

/// A shutdown that has sent its command, or a signal ahead of the commands in full lanes.
fn begin_shutdown(session: &Arc<LaneSession>) -> impl Future<Output = Result<()>> + Send + 'static {
    let session = session.clone();
    let mut shutdown = Box::pin(async move { session.shutdown().await });
    assert!(block_on(future::poll_once(&mut shutdown)).is_none());
    shutdown
}

/// A shutdown that workers know of although their lanes are full.
fn overtake(session: &Arc<LaneSession>) -> impl Future<Output = Result<()>> + Send + 'static {
    let shutdown = begin_shutdown(session);
    // No status says when a worker knows of it.
    thread::sleep(Duration::from_millis(300));
    shutdown
}

/// Waits until other threads have submitted commands up to this number.
fn wait_for_commands(session: &LaneSession, number: u64) {
    wait_until(&format!("command {number}"), || session.status().commands >= number);
}

/// Operations that wait on other threads, and their results.
struct Waits(Vec<(&'static str, thread::JoinHandle<Result<()>>)>);

impl Waits {
    fn start(session: &Arc<LaneSession>) -> Self {
        let number = call(session, "tests.count", (1,)).unwrap();
        let before = session.status().commands;
        let spawn = |work: fn(&LaneSession, &disco::DRef) -> Result<()>| {
            let (session, number) = (session.clone(), number.clone());
            thread::spawn(move || work(&session, &number))
        };
        let waits = vec![
            ("sync_all", spawn(|session, _| block_on(session.sync_all()))),
            ("sync_worker", spawn(|session, _| block_on(session.sync_worker(WorkerId::new(3))))),
            ("get", spawn(|session, number| block_on(session.value(number, WorkerId::new(3))).map(drop))),
            ("set", spawn(|session, number| block_on(session.set(number, WorkerId::new(3), 7.into())))),
        ];
        wait_for_commands(session, before + waits.len() as u64);
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

fn waits_end_when_shutdown_gives_up_on_a_stuck_worker(kind: Kind) {
    let session = busy(kind, Duration::from_millis(300));
    let waits = Waits::start(&session);
    let error = block_on(session.shutdown()).unwrap_err().to_string();
    assert!(error.starts_with("not stopped after 300ms: worker 3 ("), "{error}");
    waits.end_closed();
}

fn a_shutdown_after_a_missed_call_deadline_ends_before_the_close_limit(kind: Kind) {
    let session = builder(kind).deadlines(Deadlines::default().with_call(Duration::from_millis(500))).start().unwrap();
    hang(&session, 3);
    let error = block_on(session.sync_all()).unwrap_err().to_string();
    assert!(error.starts_with("sync_all: no end after 500ms: worker 3 does not answer: "), "{error}");
    assert!(error.ends_with(", inside `kinds.hang`"), "{error}");
    let error = within(SOON, "shutdown", move || block_on(session.shutdown())).unwrap_err().to_string();
    assert!(error.starts_with("not stopped after 3s: worker 3 ("), "{error}");
}

/// Submits calls until a lane is full and stays full.
fn fill(session: &LaneSession) {
    let function = block_on(session.function("tests.count")).unwrap();
    let start = Instant::now();
    let submit = || {
        let mut args = disco::Arguments::default();
        args.push(1);
        match session.submit(&function, args) {
            Submission::Now(submitted) => Some(submitted),
            Submission::Later(_) => None,
        }
    };
    // Time in which the workers would take commands.
    while let Some(handle) = poll(Duration::from_millis(200), submit) {
        assert!(start.elapsed() < SOON, "no lane is full");
        drop(handle.unwrap());
    }
}

fn waits_for_commands_that_a_shutdown_overtook_end_when_the_workers_have_left(kind: Kind) {
    let session = Arc::new(builder(kind).start().unwrap());
    let inside = stay(&session, 3);
    let waits = Waits::start(&session);
    fill(&session);
    let shutdown = overtake(&session);
    drop(inside);
    within(SOON, "shutdown", move || block_on(shutdown)).unwrap();
    waits.end_closed();
}

fn waits_for_a_worker_that_has_left_end_while_shutdown_waits_for_a_stuck_worker(kind: Kind) {
    let session = busy(kind, Duration::from_secs(60));
    let inside = stay(&session, 2);
    let before = session.status().commands;
    let wait = {
        let session = session.clone();
        thread::spawn(move || block_on(session.sync_worker(WorkerId::new(2))))
    };
    wait_for_commands(&session, before + 1);
    fill(&session);
    // This shutdown waits for worker 3 until the end of the test.
    let shutdown = overtake(&session);
    thread::spawn(move || block_on(shutdown));
    drop(inside);
    let error = within(SOON, "sync_worker", move || wait.join().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "sync_worker: the session is shut down");
}

fn waits_for_a_worker_killed_during_a_shutdown_end(kind: Kind) {
    if kind == Kind::Threads {
        return;
    }
    let session = builder(kind).start().unwrap();
    let pid = call(&session, "kinds.pid", ()).unwrap();
    let Value::Int(pid) = block_on(session.value(&pid, WorkerId::new(3))).unwrap() else { panic!() };
    hang(&session, 3);
    let session = Arc::new(session);
    let waits = Waits::start(&session);
    fill(&session);
    let shutdown = begin_shutdown(&session);
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    within(SOON, "shutdown", move || block_on(shutdown)).unwrap();
    waits.end_closed();
}

fn replies_that_come_before_the_workers_leave_are_delivered(kind: Kind) {
    let session = Arc::new(closing_after(kind, Duration::from_secs(30)));
    let inside = stay(&session, 3);
    let waits = Waits::start(&session);
    let shutdown = begin_shutdown(&session);
    drop(inside);
    block_on(shutdown).unwrap();
    for (name, result) in waits.end() {
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

fn two_concurrent_shutdowns_end_together_with_the_same_error(kind: Kind) {
    let session = busy(kind, Duration::from_secs(1));
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

fn shutdown_does_not_block_a_single_threaded_executor(kind: Kind) {
    let session = closing_after(kind, Duration::from_secs(30));
    let mut inside = Some(stay(&session, 3));
    let is_done = Cell::new(false);
    let shutdown = async {
        session.shutdown().await.unwrap();
        is_done.set(true);
    };
    let other_task = async {
        let mut polls = 0;
        while !is_done.get() {
            polls += 1;
            if polls > 10 {
                inside = None;
            }
            future::yield_now().await;
        }
        polls
    };
    let ((), polls) = block_on(future::zip(shutdown, other_task));
    assert!(polls > 10, "worker 3 leaves its call while the task runs, and the task ran {polls} times");
}

fn looking_up_a_function_after_shutdown_is_an_error(kind: Kind) {
    let session = builder(kind).start().unwrap();
    block_on(async {
        session.function("tests.count").await.unwrap();
        session.shutdown().await.unwrap();
        for name in ["tests.count", "kinds.hang", "tests.absent"] {
            let error = session.function(name).await.unwrap_err().to_string();
            assert_eq!(error, "function lookup: the session is shut down");
        }
    });
}

fn dropping_a_session_with_a_busy_worker_returns_soon(kind: Kind) {
    let session = busy(kind, Duration::from_secs(30));
    within(SOON, "drop", move || drop(session));
}

fn dropping_a_session_during_its_shutdown_returns_soon(kind: Kind) {
    let session = busy(kind, Duration::from_secs(1000));
    assert!(block_on(future::poll_once(session.shutdown())).is_none());
    within(SOON, "drop", move || drop(session));
}

fn dropping_a_session_with_a_stopped_worker_returns_soon(kind: Kind) {
    let session = builder(kind).silence(Duration::from_secs(60)).start().unwrap();
    let marker = Marker::new();
    call(&session, "tests.freeze", (3, i64::from(std::process::id()), marker.path())).unwrap();
    marker.wait();
    within(SOON, "drop", move || drop(session));
}

fn dropping_a_session_during_its_shutdown_waits_for_its_timeline(kind: Kind) {
    let (begin, begun) = mpsc::channel();
    let (go_on, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let is_written = Arc::new(AtomicBool::new(false));
    let written = is_written.clone();
    let sink = move |_| {
        begin.send(()).unwrap();
        gate.lock().unwrap().recv().unwrap();
        written.store(true, Ordering::SeqCst);
    };
    let session = builder(kind).timeline(64, sink).start().unwrap();
    {
        let mut shutdown = pin!(session.shutdown());
        assert!(block_on(future::poll_once(&mut shutdown)).is_none());
        // The thread that closes the session passes the timeline on.
        begun.recv().unwrap();
    }
    let dropped = thread::spawn(move || {
        drop(session);
        is_written.load(Ordering::SeqCst)
    });
    let ended = poll(Duration::from_millis(200), || dropped.is_finished().then_some(()));
    assert_eq!(ended, None, "the drop does not wait");
    go_on.send(()).unwrap();
    assert!(dropped.join().unwrap(), "the timeline is not written yet");
}
