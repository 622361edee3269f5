//! Stuck and late workers, deadlines of waits, and concurrent callers.

use std::io::{BufRead as _, BufReader};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use disco::{Builder, Deadlines, Error, LaneSession, Value, WorkerId, block_on};
use disco_conformance::waiting::wait_until;

use super::text;
use crate::gate::Gate;
use crate::with_session::with_session;

fn short_deadlines() -> Deadlines {
    Deadlines::default().with_stall(Duration::from_millis(200)).with_close(Duration::from_millis(200))
}

#[test]
fn calls_behind_a_stuck_worker_fail_with_stalled_and_shutdown_names_it() {
    let session = Builder::threads(3).deadlines(short_deadlines()).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        let add_one = session.function("tests.add_one").await.unwrap();
        session.call("tests.wait_on", (1, gate.id())).await.unwrap();
        let (queued, stalled) = call_until_error(&session, &add_one).await;
        // The ring's 1024 slots, but for those of commands that are not finished.
        assert!(queued >= 1020, "{queued} calls fit behind a stuck worker");
        assert_eq!(
            stalled,
            "worker 1 took no command for 200ms and its lane is full: \
             finished command 2, in command 3, inside `tests.wait_on`"
        );
        let stuck = text(session.shutdown().await);
        assert!(stuck.starts_with("not stopped after "), "{stuck}");
        assert!(stuck.contains("worker 1") && stuck.contains("inside `tests.wait_on`"), "{stuck}");
        assert!(!stuck.contains("worker 0") && !stuck.contains("worker 2"), "{stuck}");
        gate.open();
    });
}

#[test]
fn a_wait_for_a_collective_without_a_worker_ends_at_the_limit_of_the_program() {
    let limit = Duration::from_millis(200);
    let session = Builder::threads(3).deadlines(Deadlines::default().with_collective(limit)).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        session.init_ccl("local", &[]).await.unwrap();
        session.call("tests.wait_at_barrier", (2, gate.id())).await.unwrap();
        let error = session.sync_all().await.unwrap_err();
        // The collective itself may take 5 minutes.
        assert!(matches!(error, Error::Deadline { after, .. } if after < 100 * limit), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("worker 0 does not answer: ") && said.contains("in barrier"), "{said}");
        assert!(said.ends_with("\nMissing: worker 2 has not called it."), "{said}");
        gate.open();
    });
}

#[test]
fn a_submit_that_is_no_longer_polled_does_not_block_others() {
    let session = Builder::threads(2).deadlines(short_deadlines()).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        let add_one = session.function("tests.add_one").await.unwrap();
        session.call("tests.wait_on", (1, gate.id())).await.unwrap();
        call_until_error(&session, &add_one).await;
        let mut forgotten = std::pin::pin!(session.call(&add_one, (0,)));
        assert!(poll_once(forgotten.as_mut()).is_none());
        let stalled = text(session.sync_all().await);
        assert!(stalled.starts_with("worker 1 took no command for 200ms and its lane is full"), "{stalled}");
        gate.open();
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
        assert_eq!(text(forgotten.await), "call: the session is shut down");
    });
}

#[test]
fn shutdown_names_the_stuck_worker_and_not_those_that_wait_for_it() {
    let session = Builder::threads(3).deadlines(short_deadlines()).start().unwrap();
    block_on(async {
        let gate = Gate::new();
        session.init_ccl("local", &[]).await.unwrap();
        session.call("tests.wait_at_barrier", (2, gate.id())).await.unwrap();
        assert_eq!(
            text(session.shutdown().await),
            "not stopped after 200ms: worker 2 (finished command 4, in command 5, inside `tests.wait_at_barrier`; detached)"
        );
        gate.open();
    });
}

#[test]
fn sync_all_and_later_calls_report_the_first_failure() {
    with_session(Builder::threads(3), async |session| {
        let fail = session.function("tests.fail_in_turn").await.unwrap();
        session.call(&fail, ()).await.unwrap();
        let sync = text(session.sync_all().await);
        assert!(sync.starts_with("worker 2: tests.fail_in_turn "), "{sync}");
        let earlier = session.call(&fail, ()).await.unwrap_err();
        assert_eq!(earlier.failure().unwrap().to_string(), sync);
    });
}

#[test]
fn the_connect_deadline_names_workers_that_did_not_enter_init_ccl() {
    with_session(Builder::threads(3).connect_deadline(Duration::from_millis(200)), async |session| {
        let gate = Gate::new();
        let wait = session.function("tests.wait_on").await.unwrap();
        session.call(&wait, (1, gate.id())).await.unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Calls fail once the other ranks have given up. Worker 9 does not exist, so no worker waits.
                wait_until("the failure", || block_on(session.call(&wait, (9, gate.id()))).is_err());
                gate.open();
            });
            text(block_on(session.init_ccl("local", &[])))
        });
        assert!(error.contains("connect: no end after 200ms: rank 1 has not arrived"), "{error}");
    });
}

/// Calls a function until a call fails; returns the number of submitted calls and the error text.
async fn call_until_error(session: &LaneSession, function: &disco::DRef) -> (usize, String) {
    for queued in 0.. {
        if let Err(error) = session.call(function, (1,)).await {
            return (queued, error.to_string());
        }
    }
    unreachable!("the loop has no end")
}

/// Polls a future once.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn dropping_a_waiting_submit_changes_nothing() {
    with_session(Builder::threads(2), async |session| {
        let gate = Gate::new();
        let add_one = session.function("tests.add_one").await.unwrap();
        session.call("tests.wait_on", (0, gate.id())).await.unwrap();
        let mut handles = Vec::new();
        while let Some(handle) = poll_once(std::pin::pin!(session.call(&add_one, (0,)))) {
            handles.push(handle.unwrap());
        }
        gate.open();
        session.sync_all().await.unwrap();
        let last = handles.last().unwrap();
        let next = session.call(&add_one, (last,)).await.unwrap();
        assert_eq!(session.value(&next, WorkerId::new(1)).await.unwrap(), Value::Int(2));
        assert_eq!(next.register().index(), last.register().index() + 1, "no register was spent");
    });
}

/// Runs `work` and returns the `tracing` log of this thread. Each line is also given to `on_line` on another thread.
fn logged(work: impl FnOnce(), mut on_line: impl FnMut(&str) + Send) -> String {
    let (read, write) = std::io::pipe().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || write.try_clone().unwrap());
    std::thread::scope(|scope| {
        let lines = BufReader::new(read).lines().map(|line| line.unwrap() + "\n");
        let log = scope.spawn(move || lines.inspect(|line| on_line(line)).collect());
        tracing::subscriber::with_default(subscriber.finish(), work);
        log.join().unwrap()
    })
}

#[test]
fn a_wait_without_a_limit_logs_a_warning_with_the_worker_and_its_function() {
    let deadlines = Deadlines::default().with_warn(Duration::from_millis(200));
    let session = Builder::threads(3).deadlines(deadlines).start().unwrap();
    let gate = Gate::new();
    let work = || {
        block_on(async {
            session.init_ccl("local", &[]).await.unwrap();
            let wait = session.function("tests.wait_at_barrier").await.unwrap();
            session.call(&wait, (2, gate.id())).await.unwrap();
            // Worker 0 waits for worker 2.
            session.sync_worker(WorkerId::new(0)).await.unwrap();
            session.shutdown().await.unwrap();
        });
    };
    let mut warnings = 0;
    let log = logged(work, |line| {
        warnings += usize::from(line.contains("sync_worker has waited "));
        if warnings == 2 {
            gate.open();
        }
    });
    let warning = "sync_worker has waited 200ms for worker 2 inside `tests.wait_at_barrier` for 200ms; no limit for calls (`Deadlines::call`) is \
                   set, so that the wait has no limit\n";
    assert!(log.contains("WARN") && log.contains(warning), "{log}");
    assert!(!log.contains("worker 0 inside"), "{log}");
}

#[test]
fn a_warning_about_a_worker_in_a_collective_names_the_worker_that_it_waits_for() {
    let session =
        Builder::threads(3).deadlines(Deadlines::default().with_call(Duration::from_millis(300))).start().unwrap();
    let work = || {
        block_on(async {
            let gate = Gate::new();
            session.init_ccl("local", &[]).await.unwrap();
            session.call("tests.wait_at_barrier", (2, gate.id())).await.unwrap();
            let inside = "in command 5, inside `tests.wait_at_barrier`";
            assert_eq!(
                text(session.sync_worker(WorkerId::new(0)).await).lines().next().unwrap(),
                format!(
                    "sync_worker: no end after 300ms: worker 2 does not answer: finished command 4, {inside}; \
                     worker 0 does not answer: finished command 4, {inside}, in barrier (operation 1)"
                )
            );
            let start = std::time::Instant::now();
            let stuck = text(session.shutdown().await);
            assert!(stuck.starts_with("not stopped after 3s: worker 2 ("), "{stuck}");
            assert!(start.elapsed() < Duration::from_secs(10), "after {:?}", start.elapsed());
            gate.open();
        });
    };
    let log = logged(work, |_| {});
    let warning = "shutdown has waited 2s for worker 2 (finished command 4, in command 5, inside `tests.wait_at_barrier`); \
                   it gives up after 3s (`Deadlines::close`)\n";
    assert!(log.contains(warning), "{log}");
}

#[test]
fn the_call_deadline_does_not_apply_to_init_ccl() {
    with_session(
        Builder::threads(2).deadlines(Deadlines::default().with_call(Duration::from_millis(500))),
        async |session| {
            // Worker 1 comes late, by several calls that are each in time.
            let sleep = session.function("tests.sleep_on").await.unwrap();
            for _ in 0..9 {
                session.call(&sleep, (1, 100)).await.unwrap();
            }
            session.init_ccl("local", &[]).await.unwrap();
            session.sync_all().await.unwrap();
        },
    );
}
