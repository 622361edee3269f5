//! Slurm's `srun` and Kubernetes with one task on each machine. The names of all machines are this machine's.

use std::collections::HashSet;
use std::net::TcpListener;
use std::process;
use std::sync::{LazyLock, Mutex};

use disco_core::launcher::Place;

use super::{run, task, text, with};

super::tests!(
    "several_machines":
    tasks_of_srun_are_nodes,
    pods_of_a_leader_worker_set_are_nodes,
    pods_of_a_job_set_are_nodes,
    ranks_of_pmi_on_several_machines_are_told_what_to_set,
    tasks_without_a_token_are_an_error_on_each,
    another_number_of_nodes_is_an_error,
    task_0_waits_for_the_others_as_long_as_the_variable_says,
    the_error_of_a_killed_task_names_its_node,
    tasks_that_lose_task_0_fail,
    tasks_of_a_session_that_is_dropped_fail_with_it,
    tasks_join_at_an_address_of_ipv6,
);

pub(crate) const TOKEN: (&str, &str) = ("DISCO_TOKEN", "8d15c6f5e0a94c3f8d15c6f5e0a94c3f");

type Variables = Vec<(&'static str, String)>;

fn port(variables: &Variables) -> u16 {
    let find = |name: &str| Some(variables.iter().find(|(other, _)| *other == name)?.1.clone().into());
    Place::read(&find).unwrap().unwrap().port()
}

/// A number of a job whose port is free and of no other test: the port is a hash of the job's name, and so two jobs may
/// have one.
fn number_of_a_job(variables: impl Fn(u32) -> Variables) -> u32 {
    static USED: LazyLock<Mutex<HashSet<u16>>> =
        LazyLock::new(|| Mutex::new([leader_worker_set(0), job_set(0)].iter().map(port).collect()));
    let is_own = |number: &u32| {
        let port = port(&variables(*number));
        USED.lock().unwrap().insert(port) && TcpListener::bind(("0.0.0.0", port)).is_ok()
    };
    (0..).find(is_own).unwrap()
}

/// The variables of `srun --nodes SIZE --ntasks SIZE` by rank.
pub(crate) fn srun(size: usize) -> impl Fn(usize) -> Variables {
    let variables = move |step: u32, rank: usize| {
        vec![
            ("SLURM_JOB_ID", process::id().to_string()),
            ("SLURM_STEP_ID", step.to_string()),
            ("SLURM_STEP_NUM_TASKS", size.to_string()),
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", "0".into()),
            ("SLURM_STEP_NUM_NODES", size.to_string()),
            ("SLURM_STEP_NODELIST", "localhost,other[1-2]".into()),
        ]
    };
    let step = number_of_a_job(|step| variables(step, 0));
    move |rank| variables(step, rank)
}

fn tasks_of_srun_are_nodes() {
    let srun = srun(3);
    let outputs = run(3, |rank| task("names", &with(srun(rank), &[TOKEN, ("DISCO_WORKERS", "6")])));
    let names: String = (0..6).map(|n| format!("worker {n} of 6 in task {}\n", n / 2)).collect();
    assert_eq!(text(&outputs[0]), names);
    assert!(outputs.iter().all(|output| output.status.success()), "{:?}", outputs.iter().map(text).collect::<Vec<_>>());
}

fn leader_worker_set(rank: usize) -> Variables {
    vec![
        ("LWS_WORKER_INDEX", rank.to_string()),
        ("LWS_GROUP_SIZE", "2".into()),
        ("LWS_LEADER_ADDRESS", "localhost".into()),
    ]
}

fn pods_of_a_leader_worker_set_are_nodes() {
    let outputs = run(2, |rank| task("names", &with(leader_worker_set(rank), &[TOKEN])));
    assert_eq!(text(&outputs[0]), "worker 0 of 2 in task \nworker 1 of 2 in task \n");
}

/// Two jobs of two pods each.
fn job_set(rank: usize) -> Variables {
    vec![
        ("JOB_COMPLETION_INDEX", (rank % 2).to_string()),
        ("JOB_INDEX", (rank / 2).to_string()),
        ("JOB_COMPLETIONS", "2".into()),
        ("DISCO_NODES", "4".into()),
        ("JOBSET_COORDINATOR", "localhost".into()),
    ]
}

fn pods_of_a_job_set_are_nodes() {
    let outputs = run(4, |rank| task("names", &with(job_set(rank), &[TOKEN])));
    let names: String = (0..4).map(|n| format!("worker {n} of 4 in task \n")).collect();
    assert_eq!(text(&outputs[0]), names);
}

/// As MPICH's process manager sets them for a program without MPI, with one rank on each machine.
fn ranks_of_pmi_on_several_machines_are_told_what_to_set() {
    let pmi = |rank: usize| {
        let variables = [("PMI_RANK", rank.to_string()), ("MPI_LOCALRANKID", "0".into())];
        with(variables.into(), &[("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1"), ("DISCO_BACKEND", "local")])
    };
    let said = |variables: &[(&str, String)]| text(&task("names", variables).wait_with_output().unwrap());
    assert_eq!(
        said(&pmi(1)),
        "disco: the process manager of MPI (PMI) has started this process as task 1, but its variables name no machine of task 0: \
         set DISCO_CONNECT=HOST:PORT for this process, and DISCO_LISTEN for task 0\n"
    );
    let first = said(&pmi(0));
    assert!(first.starts_with("error: ") && first.contains("set DISCO_TOKEN_FILE=FILE"), "{first}");
    // As told.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let outputs = run(2, |rank| {
        let place = if rank == 0 { "DISCO_LISTEN" } else { "DISCO_CONNECT" };
        task("names", &with(pmi(rank), &[TOKEN, (place, &address)]))
    });
    assert_eq!(text(&outputs[0]), "worker 0 of 2 in task \nworker 1 of 2 in task \n");
}

fn tasks_without_a_token_are_an_error_on_each() {
    let srun = srun(2);
    for output in run(2, |rank| task("names", &srun(rank))) {
        let said = text(&output);
        assert!(!output.status.success() && said.contains("needs a token"), "{said}");
        assert!(said.contains("set DISCO_TOKEN_FILE=FILE"), "{said}");
    }
}

fn tasks_that_lose_task_0_fail() {
    let srun = srun(2);
    let outputs = run(2, |rank| task("lose task 0", &with(srun(rank), &[TOKEN])));
    let said = "disco: the controller lost: it closed the connection\n";
    assert_eq!((text(&outputs[1]).as_str(), outputs[1].status.code()), (said, Some(1)));
}

fn tasks_of_a_session_that_is_dropped_fail_with_it() {
    let ended = |part| {
        let srun = srun(2);
        let outputs = run(2, |rank| task(part, &with(srun(rank), &[TOKEN])));
        (outputs[1].status.code(), text(&outputs[1]))
    };
    assert_eq!(ended("drop"), (Some(0), String::new()));
    let dropped =
        "disco: the controller lost: it closed the connection: its program has dropped the session after a failure: ";
    let (status, said) = ended("fail");
    assert!(said.starts_with(dropped) && said.ends_with("no weights\n") && status == Some(1), "{status:?} {said}");
    assert_eq!(ended("panic"), (Some(1), format!("{dropped}the program has panicked\n")));
}

fn tasks_join_at_an_address_of_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    for host in ["::1", "127.0.0.1"] {
        let torchrun = |number: u32, rank: usize| -> Variables {
            vec![
                ("RANK", rank.to_string()),
                ("GROUP_RANK", rank.to_string()),
                ("WORLD_SIZE", "2".into()),
                ("LOCAL_RANK", "0".into()),
                ("LOCAL_WORLD_SIZE", "1".into()),
                ("GROUP_WORLD_SIZE", "2".into()),
                ("MASTER_ADDR", host.into()),
                ("MASTER_PORT", (29_500 + number).to_string()),
            ]
        };
        let number = number_of_a_job(|number| torchrun(number, 0));
        let outputs = run(2, |rank| task("names", &with(torchrun(number, rank), &[TOKEN])));
        assert_eq!(text(&outputs[0]), "worker 0 of 2 in task 0\nworker 1 of 2 in task 1\n", "{host}");
    }
}

fn another_number_of_nodes_is_an_error() {
    let more = [TOKEN, ("DISCO_NODES", "4"), ("DISCO_JOIN_SECONDS", "1")];
    let srun = srun(2);
    let outputs = run(2, |rank| task("names", &with(srun(rank), &more)));
    assert_eq!(
        text(&outputs[0]),
        "error: Slurm's srun has started 2 tasks, each of which is a node, but the session has 4 nodes: leave DISCO_NODES unset, or \
         start 4 tasks\n"
    );
    assert!(!outputs[1].status.success());
}

fn task_0_waits_for_the_others_as_long_as_the_variable_says() {
    let more = [TOKEN, ("DISCO_JOIN_SECONDS", "1")];
    let srun = srun(2);
    let said = text(&run(1, |rank| task("names", &with(srun(rank), &more)))[0]);
    assert!(said.starts_with("error: start: no end after 1s: node 1 did not join"), "{said}");
}

fn the_error_of_a_killed_task_names_its_node() {
    let threads = [TOKEN, ("DISCO_WORKERS", "3")];
    let srun = srun(3);
    let outputs = run(3, |rank| task("die", &with(srun(rank), &threads)));
    let said = text(&outputs[0]);
    let (start, end) = ("error: worker 2 lost: on node 2 (", "): its process ended: signal: 9 (SIGKILL)\n");
    assert!(said.starts_with(start) && said.ends_with(end), "{said}");
}
