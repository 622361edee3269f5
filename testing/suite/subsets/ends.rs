//! The end of subsets and of their parents, in any order.

use disco::{Error, block_on};
use disco_conformance::waiting::wait_until;

use super::{Door, Kind, answer, call, numbers, start};

super::tests!(
    the_shutdown_of_the_parent_first_shuts_its_subsets_down,
    the_drop_of_the_parent_ends_its_subsets,
    subsets_leave_neither_threads_nor_descriptors_in_any_process,
);

fn the_shutdown_of_the_parent_first_shuts_its_subsets_down(kind: Kind) {
    let parent = start(kind);
    let [one, other] = [[3, 1], [1, 2]].map(|workers| block_on(parent.subset(workers, 1)).unwrap());
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

fn the_drop_of_the_parent_ends_its_subsets(kind: Kind) {
    let parent = start(kind);
    let [one, other] = [[3, 1], [0, 2]].map(|workers| block_on(parent.subset(workers, 1)).unwrap());
    let answers = call(&one, "subsets.worker", ()).unwrap();
    drop(parent);
    for subset in [&one, &other] {
        assert!(matches!(answer(subset).unwrap_err(), Error::Closed(_)));
    }
    assert!(block_on(one.values(&answers)).is_err());
    block_on(one.shutdown()).unwrap();
    drop(other);
}

/// Starts subsets one after the other, of which some are dropped, fail or are shut down.
fn start_subsets(parent: &disco::LaneSession, count: u32) {
    for round in 0..count {
        let subset = block_on(parent.subset([round % 4, (round + 1) % 4], 1)).unwrap();
        if round % 5 == 0 {
            _ = call(&subset, "subsets.fail", (1,));
        }
        _ = block_on(subset.sync_all());
        if round % 3 > 0 {
            block_on(subset.shutdown()).unwrap();
        }
    }
}

fn subsets_leave_neither_threads_nor_descriptors_in_any_process(kind: Kind) {
    let parent = start(kind);
    // What is made once for a process.
    start_subsets(&parent, 4);
    // Worker 0 counts those of this process.
    let counts = |name: &str| numbers(&parent, name).unwrap();
    let names = ["subsets.threads", "subsets.descriptors"];
    let before = names.map(counts);
    start_subsets(&parent, 50);
    for (name, before) in names.iter().zip(before) {
        // Threads end a moment after their session, and the parent starts its ticker once a wait takes long.
        wait_until(&format!("no more {name} than {before:?} before"), || {
            counts(name).iter().zip(&before).all(|(after, before)| *after <= before + 1)
        });
    }
    block_on(parent.shutdown()).unwrap();
}
