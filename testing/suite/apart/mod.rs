//! Sessions whose worker 0 is a process of its own (`Builder::apart`): the end of each worker, worker 0 too. It leaves
//! nothing behind.

mod functions;
mod kills;
mod worker_0;

use disco::{DRef, IntoArgs, LaneSession, block_on};

use crate::modules::Module;

pub(crate) fn module() -> Module {
    let tests: [(&str, fn()); 6] = [
        ("sessions_go_on_whichever_worker_dies_however", kills::any_worker_any_way),
        ("worker_0_is_lost_and_replaced_like_the_others", worker_0::is_lost_and_replaced),
        ("worker_0_is_resized_away_and_the_next_one_takes_its_number", worker_0::is_resized_away),
        ("worker_0_of_nodes_is_replaced_by_a_process_of_this_machine", worker_0::of_nodes_is_replaced),
        ("worker_0_is_replaced_at_once", worker_0::is_replaced_at_once),
        ("sessions_of_threads_are_not_apart", worker_0::of_threads_is_refused),
    ];
    // One test at a time, because tests count this process's children and descriptors.
    Module::new("apart", Some(1)).tests(tests)
}

/// Calls a function by name.
fn call(session: &LaneSession, name: &str, args: impl IntoArgs) -> DRef {
    block_on(session.call(name, args)).unwrap()
}

/// The result of a function without arguments on each worker.
fn numbers(session: &LaneSession, name: &str) -> Vec<i64> {
    block_on(session.get_all(&call(session, name, ()))).unwrap()
}
