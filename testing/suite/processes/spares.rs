//! Processes that wait to take the places of lost workers.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use disco::{Builder, LaneSession, Launch, ReplacementPolicy, block_on};
use disco_conformance::waiting;
use rustix::process::Pid;

use super::death::is_alive;
use super::replace::{call, check_sums_anew, kill, lose};
use crate::workers::{kill_after, lost};

super::tests!(
    a_spare_takes_the_place_of_a_lost_worker_and_another_one_starts,
    a_spare_that_is_killed_while_it_takes_a_place_is_replaced,
    spares_end_with_their_session,
    spares_that_nothing_can_use_are_refused,
);

fn start(workers: usize, spares: usize) -> LaneSession {
    let session = Builder::processes(workers).process_options(|processes| processes.spares = spares).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    session
}

/// The process ids of the spares, once `count` are ready.
fn spares(session: &LaneSession, count: usize) -> BTreeSet<u32> {
    waiting::wait_for(&format!("{count} spares"), || {
        let spares = session.status().spares;
        let are_ready = spares.len() == count && spares.iter().all(|spare| spare.is_ready);
        are_ready.then(|| spares.into_iter().filter_map(|spare| spare.process).collect())
    })
}

/// The process ids of workers.
fn pids(session: &LaneSession) -> Vec<u32> {
    let pids = block_on(session.get_all::<i64>(&call(session, "replace.pid", ()))).unwrap();
    pids.into_iter().map(|pid| pid as u32).collect()
}

/// Replaces `workers` workers that are lost, perhaps one after the other.
fn replace(session: &LaneSession, workers: usize) {
    let mut replaced = BTreeSet::new();
    while replaced.len() < workers {
        lost(session);
        replaced.extend(block_on(session.replace_lost()).unwrap().workers);
    }
    check_sums_anew(session, session.world().size());
}

fn a_spare_takes_the_place_of_a_lost_worker_and_another_one_starts() {
    let session = start(3, 2);
    let first = spares(&session, 2);
    kill(&session, &[1]);
    replace(&session, 1);
    assert!(first.contains(&pids(&session)[1]), "the new worker was a spare");
    let second = spares(&session, 2);
    assert_eq!(first.intersection(&second).count(), 1);
    block_on(session.shutdown()).unwrap();
    assert!(!second.into_iter().any(is_alive));
}

fn a_spare_that_is_killed_while_it_takes_a_place_is_replaced() {
    let session = Builder::processes(2)
        .process_options(|processes| processes.spares = 1)
        .replacement(ReplacementPolicy::when_asked())
        .start()
        .unwrap();
    for microseconds in [0, 200, 500, 1000, 2000, 4000] {
        let spare = *spares(&session, 1).first().unwrap();
        lose(&session, &[1]);
        let killer = thread::spawn(move || {
            kill_after(Duration::from_micros(microseconds), Pid::from_raw(spare as i32).unwrap());
        });
        // Its end fails this replacement, or is the loss of the new worker.
        _ = block_on(session.replace_lost());
        killer.join().unwrap();
        while block_on(session.sync_all()).is_err() {
            _ = block_on(session.replace_lost());
        }
        assert_ne!(pids(&session)[1], spare);
        check_sums_anew(&session, 2);
    }
    block_on(session.shutdown()).unwrap();
}

fn spares_end_with_their_session() {
    for drops in [false, true] {
        let session = start(2, 2);
        // Some have not reached their `main` yet.
        let some = waiting::wait_for("a spare", || {
            let some: Vec<u32> = session.status().spares.iter().filter_map(|spare| spare.process).collect();
            Some(some).filter(|some| !some.is_empty())
        });
        if drops {
            drop(session)
        } else {
            block_on(session.shutdown()).unwrap()
        }
        assert!(!some.into_iter().any(is_alive));
    }
}

fn spares_that_nothing_can_use_are_refused() {
    let error =
        |builder: Builder| builder.process_options(|processes| processes.spares = 1).start().unwrap_err().to_string();
    assert_eq!(
        error(Builder::threads(2)),
        "1 spares need workers that are processes of this machine: threads can't be replaced"
    );
    assert!(error(Builder::nodes(2, 1)).ends_with("nodes stand by themselves (`disco worker --spare`)"));
    assert_eq!(
        error(
            Builder::processes(2).process_options(|processes| processes.launch = Some(Launch::elsewhere(|_| Ok(()))))
        ),
        "spares need workers that the session starts, but a launcher starts these"
    );
}
