//! The end of subsets and of their parents, in any order.

use std::time::{Duration, Instant};

use disco::{Error, Session, SessionExt, SessionKind, block_on};

use crate::functions::{descriptors, threads};
use crate::{Door, answer, call, numbers, start};

crate::tests!(
    the_shutdown_of_the_parent_first_shuts_its_subsets_down,
    the_drop_of_the_parent_ends_its_subsets,
    a_subset_is_dropped_without_shutdown,
    subsets_leave_neither_threads_nor_descriptors,
);

crate::tests!(tests_of_processes: subsets_leave_neither_threads_nor_descriptors_in_worker_processes);

fn the_shutdown_of_the_parent_first_shuts_its_subsets_down(kind: SessionKind) {
    let parent = start(kind);
    let [one, other] = [[3, 1], [1, 2]].map(|workers| block_on(parent.subset(workers)).unwrap());
    let [door, opened] = [Door::new(), Door::new()];
    call(&one, "subsets.wait", (1, door.text())).unwrap();
    call(&one, "subsets.open", (1, opened.text())).unwrap();
    door.open();
    block_on(parent.shutdown()).unwrap();
    assert!(opened.path().exists(), "the commands of a subset are executed before its workers leave");
    for subset in [one, other] {
        assert!(matches!(answer(&subset).unwrap_err(), Error::Closed(_)));
        block_on(subset.shutdown()).unwrap();
    }
}

fn the_drop_of_the_parent_ends_its_subsets(kind: SessionKind) {
    let parent = start(kind);
    let [one, other] = [[3, 1], [0, 2]].map(|workers| block_on(parent.subset(workers)).unwrap());
    let answers = call(&one, "subsets.worker", ()).unwrap();
    drop(parent);
    for subset in [&one, &other] {
        assert!(matches!(answer(subset).unwrap_err(), Error::Closed(_)));
    }
    assert!(block_on(one.get_all(&answers)).is_err());
    block_on(one.shutdown()).unwrap();
    drop(other);
}

fn a_subset_is_dropped_without_shutdown(kind: SessionKind) {
    let parent = start(kind);
    let [one, other] = [[3, 1], [1, 2]].map(|workers| block_on(parent.subset(workers)).unwrap());
    call(&one, "subsets.worker", ()).unwrap();
    drop(one);
    assert_eq!((answer(&other).unwrap(), answer(&parent).unwrap()), (vec![0, 1], vec![0, 1, 2, 3]));
    block_on(parent.shutdown()).unwrap();
}

/// `count`, as soon as it is at most `expected`, or after 5 s: threads end a moment after their session.
fn within_5_s(expected: i64, count: impl Fn() -> i64) -> i64 {
    let start = Instant::now();
    loop {
        let found = count();
        if found <= expected || start.elapsed() > Duration::from_secs(5) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts subsets one after the other, of which some are dropped, fail or are shut down.
fn start_subsets(parent: &disco::LaneSession, count: u32) {
    for round in 0..count {
        let subset = block_on(parent.subset([round % 4, (round + 1) % 4])).unwrap();
        if round % 5 == 0 {
            _ = call(&subset, "subsets.fail", (1,));
        }
        _ = block_on(subset.sync_all());
        if round % 3 > 0 {
            block_on(subset.shutdown()).unwrap();
        }
    }
}

fn subsets_leave_neither_threads_nor_descriptors(kind: SessionKind) {
    let parent = start(kind);
    // What is made once for a process.
    start_subsets(&parent, 4);
    let before = (within_5_s(0, threads).min(threads()), descriptors());
    start_subsets(&parent, 50);
    assert_eq!(within_5_s(before.0, threads), before.0);
    assert_eq!(within_5_s(before.1, descriptors), before.1);
    block_on(parent.shutdown()).unwrap();
}

fn subsets_leave_neither_threads_nor_descriptors_in_worker_processes(kind: SessionKind) {
    let parent = start(kind);
    start_subsets(&parent, 4);
    let count = |name: &str, worker: usize| numbers(&parent, name).unwrap()[worker];
    let names = ["subsets.threads", "subsets.descriptors"];
    let before = names.map(|name| [1, 2, 3].map(|worker| within_5_s(0, || count(name, worker))));
    start_subsets(&parent, 50);
    for (name, before) in names.iter().zip(before) {
        let after = [1, 2, 3].map(|worker| within_5_s(before[worker - 1], || count(name, worker)));
        assert_eq!(after, before, "{name}");
    }
    block_on(async {
        parent.call_named("subsets.worker", ()).await.unwrap();
        parent.shutdown().await.unwrap();
    });
}
