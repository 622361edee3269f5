//! torchrun for real, with `DISCO_LONG_TESTS`: the Debian package of PyTorch, unpacked by `cargo xtask test --long`.
//! `DISCO_REQUIRE=torchrun` makes it a failure that these tests do not run.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use disco_conformance::{Fetched, Required};

use super::{PART, text};

super::tests!(
    "torchrun":
    tasks_of_one_machine_are_worker_processes,
    tasks_of_two_machines_are_nodes,
    the_error_of_a_killed_task_names_its_worker,
    the_error_of_a_killed_task_names_its_node,
);

/// The folders of a Debian root that have libraries of PyTorch or of its dependencies.
const LIBRARIES: [&str; 5] = [
    "lib/x86_64-linux-gnu",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/blas",
    "usr/lib/x86_64-linux-gnu/lapack",
];

/// The folder with the Debian packages, if the long tests run and PyTorch can be imported from there. Panics if torchrun
/// is required and does not run.
fn debian() -> Option<PathBuf> {
    let imports = |folder: &Path| python(folder, &["-c", "import torch"]).output().is_ok_and(|it| it.status.success());
    let why = match env::var_os("DISCO_LONG_TESTS") {
        None => "tests with torchrun run with DISCO_LONG_TESTS=1",
        Some(_) => {
            let folder = Fetched::long("debian-torch").required_by("torchrun").find()?;
            if imports(&folder) {
                return Some(folder);
            }
            "Python can't import torch"
        }
    };
    assert!(!Required::from_env().contains("torchrun"), "DISCO_REQUIRE: {why}");
    eprintln!("skipped: {why}");
    None
}

/// The system's Python with the packages of the folder.
fn python(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    let libraries = env::join_paths(LIBRARIES.map(|library| folder.join(library))).unwrap();
    command.args(args).env("PYTHONPATH", folder.join("usr/lib/python3/dist-packages"));
    command.env("LD_LIBRARY_PATH", libraries).env("OMP_NUM_THREADS", "1").stdin(Stdio::null());
    command
}

/// Starts torchrun with tasks that run a part of the program. They write to files of `logs` and to torchrun's standard
/// output: with Python 3.11, this version of torchrun fails without `--redirects` and `--tee`.
fn torchrun(folder: &Path, logs: &Path, options: &[&str], part: &str) -> Child {
    let mut command = python(folder, &["-m", "torch.distributed.run", "--redirects", "1", "--tee", "1", "--log_dir"]);
    command.arg(logs).args(options).arg("--no_python").arg(env::current_exe().unwrap()).env(PART, part);
    command.env("DISCO_TOKEN", "8d15c6f5e0a94c3f8d15c6f5e0a94c3f");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs a part on two tasks of one machine. Returns whether torchrun succeeded, and the output.
fn run_on_one_machine(part: &str) -> Option<(bool, String)> {
    let (folder, logs) = (debian()?, tempfile::tempdir().unwrap());
    let output = torchrun(&folder, logs.path(), &["--standalone", "--nproc_per_node", "2"], part).wait_with_output();
    let output = output.unwrap();
    Some((output.status.success(), text(&output)))
}

/// Runs a part on two machines, which are this one, with a task each. Returns the output of each.
fn run_on_two_machines(part: &str) -> Option<[(bool, String); 2]> {
    let (folder, logs) = (debian()?, tempfile::tempdir().unwrap());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let run = |machine| {
        let options = ["--nnodes", "2", "--node_rank", machine, "--nproc_per_node", "1"];
        let master = ["--master_addr", "127.0.0.1", "--master_port", &port];
        torchrun(&folder, logs.path(), &[&options[..], &master].concat(), part)
    };
    let outputs = ["1", "0"].map(run).map(|child| child.wait_with_output().unwrap());
    let [second, first] = outputs.map(|output| (output.status.success(), text(&output)));
    Some([first, second])
}

fn tasks_of_one_machine_are_worker_processes() {
    let Some((ok, said)) = run_on_one_machine("names") else { return };
    let names = "[default0]:worker 0 of 2 in task 0\n[default0]:worker 1 of 2 in task 1\n";
    assert!(ok && said.contains(names), "{said}");
    let Some((ok, said)) = run_on_one_machine("sums of two sessions") else { return };
    assert!(ok && said.matches("[default0]:[3.0, 3.0]\n").count() == 2, "{said}");
}

fn tasks_of_two_machines_are_nodes() {
    let Some([(ok, said), second]) = run_on_two_machines("names") else { return };
    let names = "[default0]:worker 0 of 2 in task 0\n[default0]:worker 1 of 2 in task 1\n";
    assert!(ok && second.0 && said.contains(names), "{said}{}", second.1);
}

fn the_error_of_a_killed_task_names_its_worker() {
    let Some((ok, said)) = run_on_one_machine("die") else { return };
    assert!(!ok && said.contains("[default0]:error: worker 1 lost: its process ended\n"), "{said}");
}

fn the_error_of_a_killed_task_names_its_node() {
    let Some([(ok, said), _]) = run_on_two_machines("die") else { return };
    let (start, end) = ("[default0]:error: worker 1 lost: on node 1 (", "): its process ended: signal: 9 (SIGKILL)\n");
    assert!(!ok && said.contains(start) && said.contains(end), "{said}");
}
