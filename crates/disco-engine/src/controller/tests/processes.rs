//! Tests of worker processes: they join, leave, end and are killed.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use disco_core::channel::Signal;
use disco_core::wire::{Hello, Message};
use disco_core::{Command, Members, WorkerId, WorkerRange};

use super::{Bench, MS, TOKEN, conn, frame, functions};
use crate::controller::{Event, Origin};

#[test]
fn a_process_that_ends_before_it_connects_fails_the_start_with_a_hint() {
    let mut bench = Bench::processes();
    bench.hello(1, 1);
    bench.done();
    bench.on(Event::Ended(0, Some(ExitStatus::from_raw(0))));
    let done = bench.done();
    assert_eq!(
        done[1],
        "failed: worker 0 lost: its process ended: exit status: 0 before it connected; does its `main` call \
         `disco::init()` first?"
    );
    assert!(done.contains(&"Kill(1)".to_owned()) && bench.sent_to(1).contains(&"Bye".to_owned()));
    bench.on(Event::Ended(1, None));
    assert_eq!(bench.done().last().unwrap(), "Over");
}

#[test]
fn a_loss_waits_for_the_exit_status_for_a_limited_time_after_the_connection_is_closed() {
    for (wait, why) in [(499, "its process ended: signal: 9 (SIGKILL)"), (500, "its connection was closed")] {
        let mut bench = Bench::working();
        bench.on(Event::Hung(conn(1), None));
        bench.pass(wait * MS);
        bench.on(Event::Ended(1, Some(ExitStatus::from_raw(9))));
        assert!(bench.done().contains(&format!("worker 1 lost: {why}")), "{why}");
    }
}

#[test]
fn a_process_is_admitted_only_with_the_token_and_a_free_place() {
    let mut bench = Bench::processes();
    let hello = |token: &str, worker| {
        let (token, worker) = (token.as_bytes().into(), WorkerId::new(worker));
        Message::Hello(Hello { token, worker, thread: 1, functions: functions() })
    };
    for (slot, message) in [(1, hello("another", 0)), (2, hello(TOKEN, 7)), (3, Message::Ready)] {
        bench.on(Event::Opened(conn(slot), Origin::Unix { pid: Some(7) }));
        bench.send_from(slot, message);
        assert!(bench.is_closed(slot) && bench.sent_to(slot) == ["Bye"]);
    }
    bench.hello(4, 0);
    bench.on(Event::Opened(conn(5), Origin::Unix { pid: Some(7) }));
    bench.send_from(5, hello(TOKEN, 0));
    assert!(bench.is_closed(5));
    assert!(bench.done().is_empty());
    // A child of this lane is never evicted.
    bench.on(Event::Opened(conn(6), Origin::Unix { pid: Some(101) }));
    bench.send_from(6, hello("another", 1));
    assert_eq!(bench.done()[0], "failed: worker 1 lost: its token is that of another session");
}

#[test]
fn processes_leave_cleanly_after_a_shutdown_and_are_lost_before() {
    let mut bench = Bench::working();
    bench.send_from(0, Message::Signal(Signal::Shutdown));
    bench.on(Event::Ended(0, Some(ExitStatus::from_raw(0))));
    assert!(bench.done().contains(&"worker 0 lost: its process ended: exit status: 0".to_owned()));
    bench.engine.note_effect(&Command::Shutdown);
    bench.send_from(1, Message::Signal(Signal::Shutdown));
    bench.on(Event::Ended(1, Some(ExitStatus::from_raw(0))));
    let done = bench.done();
    assert_eq!(done, ["Retire(1)", "Left(WorkerRange { first: 1, len: 1 })", "Over"]);
}

#[test]
fn processes_that_a_resize_leaves_out_are_not_lost_and_killed_only_on_request() {
    let resize = Command::Resize { epoch: 1, members: Members::default().into() };
    for kills in [false, true] {
        let mut bench = Bench::working();
        bench.engine.note_effect(&resize);
        if kills {
            bench.engine.end(WorkerRange::new(1..2), bench.now);
            bench.drain();
            assert_eq!(bench.done(), ["Kill(1)"]);
            bench.on(Event::Hung(conn(1), None));
        } else {
            bench.send_from(1, Message::Signal(Signal::Shutdown));
            bench.engine.end(WorkerRange::new(1..2), bench.now);
            bench.drain();
        }
        bench.on(Event::Ended(1, Some(ExitStatus::from_raw(if kills { 9 } else { 0 }))));
        let done = bench.done();
        assert!(done.contains(&"Left(WorkerRange { first: 1, len: 1 })".to_owned()), "{done:?}");
        assert!(!done.iter().any(|it| it.starts_with("Kill") || it.contains("lost")), "{done:?}");
        // The other worker can still be lost.
        bench.on(Event::Ended(0, Some(ExitStatus::from_raw(9))));
        bench.on(Event::Hung(conn(0), None));
        let done = bench.done();
        assert!(done.iter().any(|it| it.starts_with("worker 0 lost")), "{done:?}");
    }
}

#[test]
fn processes_that_do_not_leave_are_aborted_then_killed() {
    let mut bench = Bench::working();
    bench.on(Event::Close(Duration::MAX));
    // Again, with a shorter limit.
    bench.on(Event::Close(100 * MS));
    bench.send_from(0, Message::Signal(Signal::Shutdown));
    bench.on(Event::Ended(0, Some(ExitStatus::from_raw(0))));
    bench.done();
    bench.pass(100 * MS);
    assert_eq!(bench.sent_to(1), ["Shutdown", "Abort"]);
    bench.pass(499 * MS);
    assert!(bench.done().is_empty());
    bench.pass(MS);
    assert_eq!(bench.done(), ["Kill(1)"]);
    let stuck = bench.engine.stuck().unwrap();
    assert!(stuck.len() == 1 && stuck[0].starts_with("worker 1 (") && stuck[0].ends_with("; killed)"), "{stuck:?}");
}

#[test]
fn processes_of_another_session_are_neither_watched_nor_killed() {
    for is_in_subset in [false, true] {
        let mut bench = Bench::foreign_processes();
        if is_in_subset {
            bench.engine = bench.engine.in_subset();
        }
        (0..2).for_each(|worker| bench.hello(worker, worker));
        let watches = bench.done().iter().any(|done| done.starts_with("Watch"));
        assert_eq!(watches, !is_in_subset);
        if !is_in_subset {
            continue;
        }
        bench.on(Event::Hung(conn(0), None));
        assert!(bench.done().contains(&"worker 0 lost: its connection was closed".to_owned()));
        bench.on(Event::Close(Duration::ZERO));
        bench.pass(500 * MS);
        let done = bench.done();
        assert!(!done.iter().any(|done| done.starts_with("Kill")) && done.last().unwrap() == "Over", "{done:?}");
        let stuck = bench.engine.stuck().unwrap();
        assert!(
            stuck.len() == 1 && stuck[0].starts_with("worker 1 (") && stuck[0].ends_with("; detached)"),
            "{stuck:?}"
        );
    }
}

#[test]
fn a_frame_between_the_end_of_a_worker_and_the_report_of_its_loss_goes_to_the_other_workers() {
    let mut bench = Bench::working();
    bench.on(Event::Hung(conn(1), None));
    bench.submit(&frame(1, Command::SyncAll));
    bench.drain();
    assert_eq!((bench.sent_to(0), bench.sent_to(1)), (vec!["Frame".to_owned()], Vec::new()));
    assert!(bench.done().is_empty());
    bench.pass(500 * MS);
    assert!(bench.done().contains(&"worker 1 lost: its connection was closed".to_owned()));
}

#[test]
fn a_process_that_ends_while_others_are_still_to_come_fails_the_start() {
    let mut bench = Bench::processes();
    bench.hello(0, 0);
    bench.on(Event::Hung(conn(0), None));
    bench.hello(1, 1);
    assert!(bench.done().is_empty(), "why worker 0 ended is not known yet");
    bench.on(Event::Ended(0, Some(ExitStatus::from_raw(9))));
    assert_eq!(bench.done()[1], "failed: worker 0 lost: its process ended: signal: 9 (SIGKILL)");
}
