//! Commands, values and collectives of subsets.

use disco::{Error, LaneSession, Tensor, block_on};

use super::{Door, Kind, answer, call, numbers, start, worker};

super::tests!(
    workers_have_the_numbers_of_their_order_and_the_processes_of_the_parent_s_workers,
    a_function_that_waits_for_a_later_one_of_another_subset_delays_only_its_own,
    registers_and_store_are_those_of_the_subset,
    a_subset_of_a_subset_is_a_subset,
    handles_of_the_parent_are_refused,
);

fn workers_have_the_numbers_of_their_order_and_the_processes_of_the_parent_s_workers(kind: Kind) {
    let parent = start(kind);
    let subset = block_on(parent.subset([3, 0, 2], 1)).unwrap();
    assert_eq!(subset.world().size(), 3);
    assert_eq!(answer(&subset).unwrap(), [0, 1, 2]);
    let pids = numbers(&parent, "subsets.pid").unwrap();
    assert_eq!(numbers(&subset, "subsets.pid").unwrap(), [pids[3], pids[0], pids[2]]);
    block_on(subset.shutdown()).unwrap();
    assert_eq!(answer(&parent).unwrap(), [0, 1, 2, 3]);
    block_on(parent.shutdown()).unwrap();
}

/// The sums of `subsets.sum` with this scale over `workers` workers.
fn sums(scale: i64, workers: i64, elements: i64) -> Vec<i64> {
    let ids = scale * workers * (workers + 1) / 2;
    (0..elements).map(|i| ids + workers * i).collect()
}

/// Sums in all sessions at once, with other numbers in each, and checks all elements of all workers.
fn sum_in(sessions: &[&LaneSession]) {
    const ELEMENTS: i64 = 3001;
    let scale = |at: usize| 7 + 1000 * at as i64;
    block_on(async {
        for session in sessions {
            session.init_ccl("local", &[]).await.unwrap();
        }
        for _ in 0..5 {
            let mut results = Vec::new();
            for (at, session) in sessions.iter().enumerate() {
                results.push(session.call("subsets.sum", (scale(at), ELEMENTS, 20)).await.unwrap());
            }
            for (at, (session, result)) in sessions.iter().zip(results).enumerate() {
                for sum in session.get_all::<Tensor>(&result).await.unwrap() {
                    let expected = sums(scale(at), session.world().size() as i64, ELEMENTS);
                    assert_eq!(sum.to_vec::<i64>().unwrap(), expected);
                }
            }
        }
    });
}

fn a_function_that_waits_for_a_later_one_of_another_subset_delays_only_its_own(kind: Kind) {
    let parent = start(kind);
    let [one, other] = [[1, 2], [2, 3]].map(|workers| block_on(parent.subset(workers, 1)).unwrap());
    let [first, second] = [Door::new(), Door::new()];
    // Worker 2 of the parent is in both subsets: its thread of the first waits for its thread of the second, which waits
    // for the parent's.
    call(&one, "subsets.wait", (1, first.text())).unwrap();
    call(&other, "subsets.wait", (0, second.text())).unwrap();
    call(&other, "subsets.open", (0, first.text())).unwrap();
    call(&parent, "subsets.open", (2, second.text())).unwrap();
    for session in [&*one, &*other, &parent] {
        block_on(session.sync_all()).unwrap();
    }
    block_on(parent.shutdown()).unwrap();
}

fn registers_and_store_are_those_of_the_subset(kind: Kind) {
    let parent = start(kind);
    let subset = block_on(parent.subset([0, 1], 1)).unwrap();
    block_on(async {
        let kept = parent.call("subsets.kept", ()).await.unwrap();
        parent.sync_all().await.unwrap();
        let ours = subset.call("subsets.kept", ()).await.unwrap();
        let ours: Vec<bool> = subset.get_all(&ours).await.unwrap();
        assert!(ours.contains(&false), "the key of the parent is not in the subset's store");
        drop(kept);
        let x = subset.call("subsets.worker", ()).await.unwrap();
        for round in 0..100_i64 {
            subset.set(&x, worker(1), round.into()).await.unwrap();
            let other = parent.call("subsets.worker", ()).await.unwrap();
            parent.set(&other, worker(1), (-round).into()).await.unwrap();
            assert_eq!(subset.get::<i64>(&x, worker(1)).await.unwrap(), round);
        }
        parent.shutdown().await.unwrap();
    });
}

fn a_subset_of_a_subset_is_a_subset(kind: Kind) {
    let parent = start(kind);
    let outer = block_on(parent.subset([3, 2, 0], 1)).unwrap();
    let inner = block_on(outer.subset([2, 0], 1)).unwrap();
    let pids = numbers(&parent, "subsets.pid").unwrap();
    assert_eq!(numbers(&inner, "subsets.pid").unwrap(), [pids[0], pids[3]]);
    sum_in(&[&inner, &outer, &parent]);
    block_on(outer.shutdown()).unwrap();
    assert!(matches!(answer(&inner).unwrap_err(), Error::Closed(_)));
    assert_eq!(answer(&parent).unwrap(), [0, 1, 2, 3]);
    block_on(parent.shutdown()).unwrap();
}

fn handles_of_the_parent_are_refused(kind: Kind) {
    let parent = start(kind);
    let subset = block_on(parent.subset([1], 1)).unwrap();
    let handle = call(&parent, "subsets.worker", ()).unwrap();
    assert!(matches!(block_on(subset.value(&handle, worker(0))).unwrap_err(), Error::ForeignRef(_)));
    block_on(parent.shutdown()).unwrap();
}
