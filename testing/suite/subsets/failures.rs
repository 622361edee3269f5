//! Failures in one of several sessions that share workers.

use std::time::Duration;

use disco::{Deadlines, Error, block_on};
use rustix::process::{Pid, Signal, kill_process};

use super::{Door, Kind, answer, builder, call, numbers, start, worker};

super::tests!(a_failure_and_a_panic_in_a_subset_fail_neither_the_parent_nor_other_subsets,);

// For all kinds at the same time.
super::tests!(tests_that_wait:
    a_hanging_function_in_a_subset_is_left_behind_and_its_process_goes_on,
);

super::tests!(tests_of_processes:
    a_killed_process_is_lost_to_the_sessions_with_a_worker_in_it,
    a_replaced_worker_of_the_parent_joins_new_subsets,
);

fn a_failure_and_a_panic_in_a_subset_fail_neither_the_parent_nor_other_subsets(kind: Kind) {
    let parent = start(kind);
    let [one, two, other] = [[0, 1], [1, 2], [1, 2]].map(|workers| block_on(parent.subset(workers, 1)).unwrap());
    call(&one, "subsets.fail", (1,)).unwrap();
    call(&two, "subsets.panic", (0,)).unwrap();
    let [one, two] = [one, two].map(|subset| block_on(subset.sync_all()).unwrap_err().to_string());
    assert_eq!(one, "worker 1: subsets.fail (command 2, register 1): on purpose");
    assert_eq!(two, "worker 0: subsets.panic (command 2, register 1): panicked: on purpose");
    assert_eq!((answer(&other).unwrap(), answer(&parent).unwrap()), (vec![0, 1], vec![0, 1, 2, 3]));
    block_on(parent.shutdown()).unwrap();
}

fn a_hanging_function_in_a_subset_is_left_behind_and_its_process_goes_on(kind: Kind) {
    let deadlines = Deadlines::default().with_close(Duration::from_millis(300));
    let parent = builder(kind).deadlines(deadlines).start().unwrap();
    let (subset, other) = (block_on(parent.subset([1, 2], 1)).unwrap(), block_on(parent.subset([1, 0], 1)).unwrap());
    let door = Door::new();
    call(&subset, "subsets.wait", (0, door.text())).unwrap();
    block_on(subset.sync_worker(worker(1))).unwrap();
    let stuck = block_on(subset.shutdown()).unwrap_err();
    assert!(matches!(stuck, Error::Stuck { .. }), "{stuck}");
    assert!(stuck.to_string().contains("worker 0 (") && stuck.to_string().contains("detached"), "{stuck}");
    // A worker process that outlives its controller kills itself after 4 s. The thread of a subset must not do that.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!((answer(&other).unwrap(), answer(&parent).unwrap()), (vec![0, 1], vec![0, 1, 2, 3]));
    door.open();
    block_on(parent.shutdown()).unwrap();
}

fn kill(pid: i64) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

fn a_killed_process_is_lost_to_the_sessions_with_a_worker_in_it(kind: Kind) {
    let parent = start(kind);
    let [with, without] = [[0, 3], [1, 2]].map(|workers| block_on(parent.subset(workers, 1)).unwrap());
    let door = Door::new();
    call(&with, "subsets.wait", (1, door.text())).unwrap();
    kill(numbers(&parent, "subsets.pid").unwrap()[3]);
    let lost = block_on(with.sync_all()).unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
    let text = lost.to_string();
    let text = text.lines().next().unwrap();
    let node = text.starts_with("node 2 (") && text.ends_with("with worker 1 lost: its connection was closed");
    assert!(text == "worker 1 lost: its connection was closed" || kind == Kind::Tree && node, "{text}");
    let lost = block_on(parent.sync_all()).unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }) && lost.to_string().contains("worker 3"), "{lost}");
    for _ in 0..3 {
        assert_eq!(answer(&without).unwrap(), [0, 1]);
    }
    // The loss of the parent ends no subset, but starts none either.
    assert!(matches!(block_on(parent.subset([1], 1)).unwrap_err(), Error::Lost { .. }));
    let replaced = block_on(with.replace_lost()).unwrap_err().to_string();
    assert!(replaced.starts_with("worker 1 can't be replaced: "), "{replaced}");
    block_on(async {
        with.shutdown().await.unwrap();
        without.shutdown().await.unwrap();
        parent.shutdown().await.unwrap();
    });
}

fn a_replaced_worker_of_the_parent_joins_new_subsets(kind: Kind) {
    let parent = start(kind);
    let subset = block_on(parent.subset([3, 1], 1)).unwrap();
    kill(numbers(&parent, "subsets.pid").unwrap()[3]);
    block_on(subset.sync_all()).unwrap_err();
    block_on(parent.sync_all()).unwrap_err();
    block_on(parent.replace_lost()).unwrap();
    let new = block_on(parent.subset([3, 1], 1)).unwrap();
    let pids = numbers(&parent, "subsets.pid").unwrap();
    assert_eq!(numbers(&new, "subsets.pid").unwrap(), [pids[3], pids[1]]);
    block_on(parent.shutdown()).unwrap();
}
