//! Lost workers that the session replaces at once, without being asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use disco::{Builder, Error, LaneSession, Launch, ReplacementPolicy, WorkerId, block_on};
use disco_conformance::waiting::wait_until;

use super::first_line;
use super::replace::{accept, call, check_sums_anew, kill, lose};

super::tests!(
    a_loss_that_ends_no_wait_is_returned_once_by_the_next_method,
    a_worker_that_ends_again_and_again_ends_the_session_with_the_reason,
    each_method_tries_again_to_start_new_workers,
    a_session_ends_while_workers_start_in_the_background,
    a_session_ends_with_new_workers_that_no_method_has_met,
    a_subset_of_a_session_waits_for_new_workers,
);

fn start(workers: usize) -> LaneSession {
    let session = Builder::processes(workers).replacement(ReplacementPolicy::at_once()).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    session
}

/// Waits until the session knows of a loss, without a method that waits for workers.
fn await_loss(session: &LaneSession) {
    wait_until("a loss", || session.status().failure.is_some());
}

/// Waits until this process has `count` children.
fn await_children(count: usize) {
    let children = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        // A thread may end meanwhile.
        let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        children.map(|children| children.split_whitespace().count()).sum::<usize>()
    };
    wait_until(&format!("{count} children"), || children() == count);
}

fn a_loss_that_ends_no_wait_is_returned_once_by_the_next_method() {
    let session = start(3);
    let number = block_on(session.function("replace.number")).unwrap();
    kill(&session, &[1]);
    await_loss(&session);
    // The lost worker's process, which is waited for, and the new one.
    await_children(2);
    let error = block_on(session.call(&number, (1,))).unwrap_err();
    assert_eq!(first_line(&error), "worker 1 lost: its process ended: signal: 9 (SIGKILL)");
    let numbers = block_on(session.call(&number, (1,))).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&numbers)).unwrap(), [1, 2, 3]);
    check_sums_anew(&session, 3);
    let replaced = block_on(session.replace_lost()).unwrap();
    assert_eq!((replaced.workers, replaced.epoch), (vec![WorkerId::new(1)], 1));
    block_on(session.shutdown()).unwrap();
}

fn a_worker_that_ends_again_and_again_ends_the_session_with_the_reason() {
    let policy = ReplacementPolicy::at_once().at_most(2, Duration::from_secs(3600));
    let session = Builder::processes(2).replacement(policy).start().unwrap();
    for _ in 0..2 {
        lose(&session, &[1]);
        block_on(session.sync_all()).unwrap();
    }
    lose(&session, &[1]);
    for _ in 0..2 {
        assert_eq!(
            block_on(session.sync_all()).unwrap_err().to_string(),
            "replace_lost: worker 1: 2 workers were replaced within 3600s, and the limit is 2 (`ReplacementPolicy::at_most`)"
        );
    }
    block_on(session.shutdown()).unwrap();
}

/// A session of two workers that replaces them at once, by processes that `invite` starts if it returns true for their
/// number.
fn invited(invite: impl Fn(usize) -> disco::Result<bool> + Send + Sync + 'static) -> LaneSession {
    let invited = AtomicUsize::new(0);
    let builder = Builder::processes(2).replacement(ReplacementPolicy::at_once());
    let builder = builder.start_deadline(Duration::from_secs(600)).process_options(|processes| {
        processes.launch = Some(Launch::elsewhere(move |invitation| {
            if invite(invited.fetch_add(1, Ordering::SeqCst))? {
                accept(invitation);
            }
            Ok(())
        }))
    });
    builder.start().unwrap()
}

fn each_method_tries_again_to_start_new_workers() {
    let tried = Arc::new(AtomicUsize::new(0));
    let count = tried.clone();
    let session = invited(move |number| {
        count.store(number, Ordering::SeqCst);
        match number {
            1 | 2 => Err(Error::invalid("no machine is free")),
            _ => Ok(true),
        }
    });
    lose(&session, &[1]);
    // The attempt in the background.
    wait_until("the attempt", || tried.load(Ordering::SeqCst) > 0);
    assert_eq!(block_on(session.sync_all()).unwrap_err().to_string(), "no machine is free");
    block_on(session.sync_all()).unwrap();
    assert_eq!(tried.load(Ordering::SeqCst), 3);
    block_on(session.shutdown()).unwrap();
}

fn a_session_ends_while_workers_start_in_the_background() {
    for drops in [false, true] {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        // The new worker never comes.
        let session = invited(move |number| {
            count.store(number, Ordering::SeqCst);
            Ok(number == 0)
        });
        kill(&session, &[1]);
        await_loss(&session);
        wait_until("the invitation", || asked.load(Ordering::SeqCst) > 0);
        if drops { drop(session) } else { block_on(session.shutdown()).unwrap() }
    }
}

fn a_session_ends_with_new_workers_that_no_method_has_met() {
    for drops in [false, true] {
        let session = start(3);
        kill(&session, &[1, 2]);
        await_loss(&session);
        if drops {
            drop(session)
        } else {
            _ = block_on(session.shutdown())
        }
        await_children(0);
    }
}

fn a_subset_of_a_session_waits_for_new_workers() {
    let session = start(3);
    lose(&session, &[1]);
    let subset = block_on(session.subset([2, 1], 1)).unwrap();
    let numbers = call(&subset, "replace.number", (5,));
    assert_eq!(block_on(subset.get_all::<i64>(&numbers)).unwrap(), [5, 6]);
    block_on(session.shutdown()).unwrap();
}
