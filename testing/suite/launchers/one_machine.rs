//! `torchrun` and `srun` with all tasks on this machine.

use std::io::{BufRead as _, BufReader};
use std::process::{self, Child, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{assert_others_are_silent, run, task, text, with};

super::tests!(
    "one_machine":
    tasks_of_torchrun_are_worker_processes,
    tasks_exchange_tensors_in_each_of_two_sessions,
    tasks_beyond_the_workers_end_with_task_0,
    tasks_end_with_a_task_0_without_a_session,
    more_workers_than_tasks_are_an_error,
    a_task_without_task_0_ends_with_an_error,
    task_0_waits_for_the_others_as_long_as_the_variable_says,
    the_error_of_a_killed_task_names_its_worker,
    tasks_that_lose_task_0_fail,
    disco_session_threads_makes_each_task_a_program,
    contradicting_variables_are_an_error,
    a_second_program_of_task_0_can_not_take_the_tasks_of_the_first,
    a_program_that_a_task_starts_takes_no_invitation,
    tasks_of_pmix_alone_are_an_error,
);

/// As PRRTE's `prterun` sets them.
fn tasks_of_pmix_alone_are_an_error() {
    let pmix = |rank: &str| vec![("PMIX_RANK", rank.into()), ("PMIX_NAMESPACE", "prterun-vm-15782@1".to_owned())];
    let said = |variables: &[(&str, String)]| text(&task("names", variables).wait_with_output().unwrap());
    for rank in ["0", "1"] {
        assert_eq!(
            said(&with(pmix(rank), &[("DISCO_MPI_LIBRARY", "/nonexistent")])),
            format!(
                "error: PMIx has started this process as task {rank}, but its variables do not tell the number of tasks, and the tasks \
                 are not ranks of an MPI library: install one for backend mpi, use another launcher, or set DISCO_SESSION=threads, \
                 which makes each task a program of its own\n"
            )
        );
    }
    let alone = said(&with(pmix("1"), &[("DISCO_SESSION", "threads")]));
    assert_eq!(alone, "worker 0 of 1 in task \n");
}

fn a_program_that_a_task_starts_takes_no_invitation() {
    let job = job();
    let task_1 = task("names", &torchrun(&job, 1, 2));
    // The child starts once the task waits for task 0.
    let claimed = format!("@disco-job-{}-{job}-29500-task-1", rustix::process::geteuid().as_raw());
    disco_conformance::waiting::wait_until("the claim of task 1", || {
        std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(|line| line.ends_with(&claimed))
    });
    let child = |part, more: &[_]| text(&task(part, &with(torchrun(&job, 1, 2), more)).wait_with_output().unwrap());
    assert_eq!(child("no session", &[]), "");
    assert_eq!(
        child("names", &[]),
        "error: torchrun has started this process as task 1, but another process serves as this task, which may be the parent: set \
         DISCO_SESSION=threads, or remove the launcher's variables, for a program that a task starts\n"
    );
    assert_eq!(child("sum", &[("DISCO_SESSION", "threads"), ("DISCO_WORKERS", "2")]), "[3.0, 3.0]\n");
    let first = task("names", &torchrun(&job, 0, 2)).wait_with_output().unwrap();
    let outputs = [first, task_1.wait_with_output().unwrap()];
    assert_eq!(text(&outputs[0]), "worker 0 of 2 in task 0\nworker 1 of 2 in task 1\n");
    assert_others_are_silent(&outputs);
}

fn a_second_program_of_task_0_can_not_take_the_tasks_of_the_first() {
    let job = job();
    let more = |part| task(part, &torchrun(&job, 0, 2));
    let mut first = more("wait");
    // The first program has called `disco::init` when it prints.
    let mut line = String::new();
    BufReader::new(first.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    // A program without a session is not disturbed.
    let idle = more("no session").wait_with_output().unwrap();
    let second = more("names").wait_with_output().unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(idle.status.success() && text(&idle).is_empty(), "{}", text(&idle));
    let said = text(&second);
    let wanted =
        format!("error: the socket of job `{job}-29500` for the launcher's tasks can't be opened on this machine: ");
    assert!(said.starts_with(&wanted), "{said}");
}

/// A job that no other test has.
pub(crate) fn job() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The variables of `torchrun --nproc-per-node SIZE`.
fn torchrun(job: &str, rank: usize, size: usize) -> Vec<(&'static str, String)> {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("LOCAL_WORLD_SIZE", size.to_string()),
        ("GROUP_RANK", "0".into()),
        ("GROUP_WORLD_SIZE", "1".into()),
        ("MASTER_ADDR", "localhost".into()),
        ("MASTER_PORT", "29500".into()),
        ("TORCHELASTIC_RUN_ID", job.into()),
    ]
}

/// A short time limit for tasks that start after task 0 has ended.
const SHORT: (&str, &str) = ("DISCO_JOIN_SECONDS", "2");

/// Asserts that a task without work has ended without a word, or with the error that task 0 was not there any more.
fn assert_not_needed(task: &Output) {
    let said = text(task);
    let is_late = !task.status.success() && said.contains("for task 0, which has not called disco::init()");
    assert!(is_late || task.status.success() && said.is_empty(), "{}: {said}", task.status);
}

/// Starts tasks of `torchrun` that run a part of the program.
pub(crate) fn starter(part: &'static str, size: usize, more: &[(&'static str, &str)]) -> impl Fn(usize) -> Child {
    let job = job();
    let more: Vec<_> = more.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    move |rank| task(part, &[torchrun(&job, rank, size), more.clone()].concat())
}

fn tasks_of_torchrun_are_worker_processes() {
    let outputs = run(3, starter("names", 3, &[]));
    let names: String = (0..3).map(|n| format!("worker {n} of 3 in task {n}\n")).collect();
    assert_eq!(text(&outputs[0]), names);
    assert_others_are_silent(&outputs);
}

/// The variables of `srun --nodes 1 --ntasks SIZE`.
pub(crate) fn srun(job: &str, rank: usize, size: usize) -> Vec<(&'static str, String)> {
    vec![
        ("SLURM_JOB_ID", job.into()),
        ("SLURM_STEP_ID", "0".into()),
        ("SLURM_STEP_NUM_TASKS", size.to_string()),
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_LOCALID", rank.to_string()),
        ("SLURM_STEP_NUM_NODES", "1".into()),
        ("SLURM_STEP_NODELIST", "node7".into()),
    ]
}

fn tasks_exchange_tensors_in_each_of_two_sessions() {
    let outputs = run(3, starter("sums of two sessions", 3, &[]));
    assert_eq!(text(&outputs[0]), "[6.0, 6.0, 6.0]\n".repeat(2));
    assert_others_are_silent(&outputs);
}

fn tasks_beyond_the_workers_end_with_task_0() {
    let outputs = run(3, starter("processes", 3, &[SHORT]));
    assert_eq!(text(&outputs[0]), "worker 0 of 2 in task 0\nworker 1 of 2 in task 1\n");
    assert_not_needed(&outputs[2]);
}

fn tasks_end_with_a_task_0_without_a_session() {
    let outputs = run(2, starter("no session", 2, &[SHORT]));
    assert!(outputs[0].status.success(), "{}", text(&outputs[0]));
    assert_not_needed(&outputs[1]);
}

fn more_workers_than_tasks_are_an_error() {
    let outputs = run(2, starter("names", 2, &[SHORT, ("DISCO_WORKERS", "5")]));
    assert_eq!(
        text(&outputs[0]),
        "error: torchrun has started 2 tasks, but the session has 5 workers: start at least 5 tasks, or set DISCO_SESSION=threads, \
         which makes each task a program of its own\n"
    );
    assert_not_needed(&outputs[1]);
}

fn a_task_without_task_0_ends_with_an_error() {
    let job = job();
    let more = vec![("DISCO_JOIN_SECONDS", "1".into())];
    let output = task("names", &[torchrun(&job, 1, 2), more].concat()).wait_with_output().unwrap();
    let said = text(&output);
    let wanted = "disco: task 1 has waited 1s for task 0, which has not called disco::init() on this machine: ";
    assert!(!output.status.success() && said.starts_with(wanted), "{said}");
}

fn task_0_waits_for_the_others_as_long_as_the_variable_says() {
    let said = text(&run(1, starter("names", 2, &[SHORT]))[0]);
    assert!(said.starts_with("error: ") && said.contains(" 2s"), "{said}");
}

fn the_error_of_a_killed_task_names_its_worker() {
    let outputs = run(3, starter("die", 3, &[]));
    let said = text(&outputs[0]);
    assert_eq!(said, "error: worker 2 lost: its process ended\n");
    assert!(!outputs[2].status.success());
}

fn tasks_that_lose_task_0_fail() {
    let outputs = run(3, starter("lose task 0", 3, &[]));
    for output in &outputs[1..] {
        assert_eq!((text(output), output.status.code()), (LOST.to_owned(), Some(1)));
    }
}

const LOST: &str = "disco: the controller lost: it closed the connection\n";

fn disco_session_threads_makes_each_task_a_program() {
    for output in run(2, starter("sum", 2, &[("DISCO_SESSION", "threads"), ("DISCO_WORKERS", "2")])) {
        assert_eq!(text(&output), "[3.0, 3.0]\n");
    }
}

fn contradicting_variables_are_an_error() {
    let output = task("names", &torchrun("job", 2, 2)).wait_with_output().unwrap();
    assert_eq!(
        text(&output),
        "error: RANK=2 and WORLD_SIZE=2, variables of torchrun, contradict each other: the rank must be below the number of tasks\n"
    );
    // Disco's own variables win.
    let variables = [torchrun("job", 2, 2), vec![("DISCO_WORKERS", "2".into())]].concat();
    let output = task("sum", &variables).wait_with_output().unwrap();
    assert_eq!(text(&output), "[3.0, 3.0]\n");
}
