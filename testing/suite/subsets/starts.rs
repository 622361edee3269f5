//! Starts of subsets: wrong arguments, states of the parent, dropped futures, records.

use std::time::{Duration, Instant};

use disco::{Error, block_on};

use super::{Door, Kind, answer, builder, call, start};

super::tests!(
    wrong_workers_are_refused,
    a_subset_of_a_session_that_is_shut_down_is_refused,
    a_worker_that_is_inside_a_function_joins_later,
    an_invitation_is_not_recorded,
    a_start_during_which_the_parent_fails_and_recovers_is_an_error_at_once,
);

fn wrong_workers_are_refused(kind: Kind) {
    let parent = start(kind);
    let refused = |workers: &[u32]| block_on(parent.subset(workers.iter().copied(), 1)).unwrap_err();
    assert_eq!(refused(&[]).to_string(), "subset: no workers; name at least 1");
    assert_eq!(refused(&[1, 0, 1]).to_string(), "subset: worker 1 is named twice");
    assert!(matches!(refused(&[0, 4]), Error::NoSuchWorker { .. }));
    let unequal = block_on(parent.subset([0, 1, 2], 2)).unwrap_err().to_string();
    assert_eq!(unequal, "3 workers in 2 groups: groups must be of equal size");
    assert_eq!(answer(&parent).unwrap(), [0, 1, 2, 3]);
    block_on(parent.shutdown()).unwrap();
}

fn a_subset_of_a_session_that_is_shut_down_is_refused(kind: Kind) {
    let parent = start(kind);
    block_on(parent.shutdown()).unwrap();
    assert!(matches!(block_on(parent.subset([0], 1)).unwrap_err(), Error::Closed(_)));
}

fn a_worker_that_is_inside_a_function_joins_later(kind: Kind) {
    let parent = start(kind);
    let door = Door::new();
    call(&parent, "subsets.wait", (1, door.text())).unwrap();
    let subset = std::thread::scope(|scope| {
        scope.spawn(|| door.open());
        block_on(parent.subset([2, 1], 1)).unwrap()
    });
    assert_eq!(answer(&subset).unwrap(), [0, 1]);
    block_on(parent.shutdown()).unwrap();
}

/// The call that lets a worker join has a secret: its trace says when it was, and nothing of its arguments.
fn an_invitation_is_not_recorded(kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let parent = builder(kind).trace(&path).start().unwrap();
    let subset = block_on(parent.subset([1, 2], 1)).unwrap();
    assert_eq!(answer(&subset).unwrap(), [0, 1]);
    block_on(parent.shutdown()).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let events = trace.as_array().unwrap();
    let joins: Vec<_> = events.iter().filter(|event| event["name"] == "disco.join_subset").collect();
    // Threads are started by the controller itself.
    assert_eq!(joins.is_empty(), kind == Kind::Threads, "{joins:?}");
    for join in joins {
        let args = join["args"].as_object().into_iter().flatten();
        for (name, arg) in args {
            let is_short = arg.as_str().is_some_and(|text| text.len() < 20);
            assert!(arg.is_number() || arg.is_boolean() || is_short, "{name} of {join}");
        }
    }
}

/// The call that lets the workers join is behind the one that fails.
fn a_start_during_which_the_parent_fails_and_recovers_is_an_error_at_once(kind: Kind) {
    // The start deadline of the parent, 30 s by default, is also that of the subset.
    let parent = start(kind);
    let door = Door::new();
    call(&parent, "subsets.wait", (1, door.text())).unwrap();
    call(&parent, "subsets.fail", (1,)).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let subset = scope.spawn(|| block_on(parent.subset([2, 1], 1)));
        scope.spawn(|| door.open());
        // Another thread begins an epoch, however often the start has looked.
        while !subset.is_finished() {
            _ = block_on(parent.sync_all());
            _ = block_on(parent.recover());
        }
        // If the start comes to its call after the recovery, it succeeds.
        if let Ok(subset) = subset.join().unwrap() {
            assert_eq!(answer(&subset).unwrap(), [0, 1]);
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    // The start may have ended before the call that fails.
    if block_on(parent.sync_all()).is_err() {
        block_on(parent.recover()).unwrap();
    }
    assert_eq!(answer(&parent).unwrap(), [0, 1, 2, 3]);
    block_on(parent.shutdown()).unwrap();
}
