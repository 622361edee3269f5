//! Sessions of tasks whose worker 0 is a process of its own: task 0 is the controller, and starts worker 0 as a process.

use std::path::Path;

use disco_conformance::waiting;

use super::one_machine::{job, srun, starter};
use super::several_machines::{self, TOKEN};
use super::{assert_others_are_silent, run, task, text, with};

super::tests!(
    "apart":
    tasks_exchange_tensors_in_each_of_two_sessions,
    tasks_of_srun_are_the_workers_after_worker_0,
    task_0_outlives_worker_0_and_replaces_it,
    another_task_can_not_be_replaced,
    the_other_tasks_go_on_without_worker_0,
    worker_0_and_the_other_tasks_end_with_task_0,
    task_0_of_several_machines_starts_its_workers,
    task_0_of_several_machines_outlives_worker_0_and_replaces_it,
);

const APART: (&str, &str) = ("DISCO_APART", "1");
const LOSS_OF_TASK_0: &str = "disco: the controller lost: it closed the connection\n";
const LOSS_OF_WORKER_0: &str = "worker 0 lost: its process ended: signal: 9 (SIGKILL)\n";

fn tasks_exchange_tensors_in_each_of_two_sessions() {
    let outputs = run(3, starter("sums of two sessions", 3, &[APART]));
    assert_eq!(text(&outputs[0]), "[6.0, 6.0, 6.0]\n".repeat(2));
    assert_others_are_silent(&outputs);
}

/// Worker 0 has the variables of task 0, which has started it.
fn tasks_of_srun_are_the_workers_after_worker_0() {
    let job = job();
    let outputs = run(2, |rank| task("names", &with(srun(&job, rank, 2), &[APART])));
    assert_eq!(text(&outputs[0]), "worker 0 of 2 in task 0\nworker 1 of 2 in task 1\n");
    assert_others_are_silent(&outputs);
}

fn task_0_outlives_worker_0_and_replaces_it() {
    let outputs = run(3, starter("replace worker 0", 3, &[APART]));
    assert_eq!(text(&outputs[0]), format!("{LOSS_OF_WORKER_0}new: [WorkerId(0)]\n[6.0, 6.0, 6.0]\n"));
    assert_others_are_silent(&outputs);
}

fn another_task_can_not_be_replaced() {
    let outputs = run(2, starter("replace the last", 2, &[APART]));
    assert_eq!(
        text(&outputs[0]),
        "worker 1 lost: its process ended\nerror: worker 1 can't be replaced: their launcher starts processes only once; a new \
         session can have other workers\n"
    );
}

fn the_other_tasks_go_on_without_worker_0() {
    let outputs = run(3, starter("resize", 3, &[APART]));
    let refused = "resize: the launcher of the workers starts processes only once; start a new session\n";
    let names = "worker 0 of 2 in task 1\nworker 1 of 2 in task 2\n";
    assert_eq!(text(&outputs[0]), [LOSS_OF_WORKER_0, refused, names].concat());
    assert_others_are_silent(&outputs);
}

fn worker_0_and_the_other_tasks_end_with_task_0() {
    let outputs = run(2, starter("kill the controller", 2, &[APART]));
    let said = text(&outputs[0]);
    let worker_0 = said.trim_start_matches('[').split(',').next().unwrap();
    // Another process may have its number by now.
    let program = Path::new("/proc").join(worker_0).join("exe");
    let this = std::env::current_exe().unwrap();
    waiting::wait_until("the end of worker 0", || program.read_link().ok().as_ref() != Some(&this));
    assert_eq!((text(&outputs[1]).as_str(), outputs[1].status.code()), (LOSS_OF_TASK_0, Some(1)));
}

fn task_0_of_several_machines_starts_its_workers() {
    let variables = [TOKEN, APART, ("DISCO_WORKERS", "4")];
    let srun = several_machines::srun(2);
    let outputs = run(2, |rank| task("names", &with(srun(rank), &variables)));
    let names: String = (0..4).map(|n| format!("worker {n} of 4 in task {}\n", n / 2)).collect();
    assert_eq!(text(&outputs[0]), names);
    assert!(outputs.iter().all(|output| output.status.success()), "{:?}", outputs.iter().map(text).collect::<Vec<_>>());
}

fn task_0_of_several_machines_outlives_worker_0_and_replaces_it() {
    let srun = several_machines::srun(2);
    let outputs = run(2, |rank| task("replace worker 0", &with(srun(rank), &[TOKEN, APART])));
    assert_eq!(text(&outputs[0]), format!("{LOSS_OF_WORKER_0}new: [WorkerId(0)]\n[3.0, 3.0]\n"));
}
