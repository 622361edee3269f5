//! `disco worker --reconnect` as a service: its refusals, and the end of all processes after one of them is killed.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};

use disco_conformance::waiting;
use rustix::process::{Pid, Signal, kill_process};

use super::{Folder, PROGRAM, disco, err, hello};

crate::trials::tests!("nodes::service":
    a_service_does_not_start_without_a_token_or_with_one_that_all_users_can_read,
    a_node_refuses_more_workers_than_its_limit_and_serves_the_next_session,
    no_process_is_left_when_the_supervisor_is_killed,
    a_node_that_sigterm_stops_tells_the_controller_so,
    a_killed_node_leaves_no_worker_and_is_replaced,
    a_killed_controller_leaves_no_worker_and_the_node_waits_for_the_next,
);

fn hang(_: &mut disco::WorkerContext) -> disco::Result<()> {
    waiting::hang()
}

disco::register_function!("nodes.hang", hang);

/// `main` of a program whose workers are inside a long function.
pub(crate) fn doze() -> ExitCode {
    disco::init();
    let session = disco::from_env().unwrap();
    let dozed = disco::block_on(async {
        let doze = session.function("nodes.hang").await?;
        session.sync_all().await?;
        session.call(&doze, ()).await?;
        println!("started");
        session.sync_all().await
    });
    eprintln!("{}", dozed.unwrap_err());
    // Worker 0 is inside the function.
    std::process::exit(1)
}

/// A node that serves sessions one after another, and the address where it looks for them.
struct Service {
    folder: Folder,
    address: String,
    node: Child,
}

impl Service {
    fn start(name: &str, args: &[&str]) -> Self {
        let folder = Folder::new(name);
        assert!(disco().arg("token").arg(folder.0.join("session.token")).status().unwrap().success());
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut node = disco();
        node.env(PROGRAM, "doze").args(["worker", "--reconnect", "--connect", &address]).args(args);
        node.arg("--token-file").arg(folder.0.join("session.token")).arg("--").arg(hello());
        let node = node.stderr(Stdio::piped()).spawn().unwrap();
        Self { folder, address, node }
    }

    /// Starts a session of two nodes.
    fn session(&self, program: &str, workers: &str) -> Child {
        let mut run = disco();
        run.env(PROGRAM, program).args(["run", "--nodes", "2", "--workers", workers, "--listen", &self.address]);
        run.arg("--token-file").arg(self.folder.0.join("session.token")).arg("--").arg(hello());
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts a session whose workers are inside a function. Returns it with the ids of the node's process and its workers.
    fn dozing(&self) -> (Child, Vec<i32>) {
        let mut run = self.session("doze", "4");
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "started");
        let [node] = children(self.node.id() as i32)[..] else { panic!("not one node") };
        let workers = children(node);
        assert_eq!(workers.len(), 2, "{workers:?}");
        (run, [vec![node], workers].concat())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        _ = self.node.kill();
        _ = self.node.wait();
    }
}

/// The processes that a process has started.
fn children(process: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let children =
        threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).unwrap_or_default());
    children.collect::<String>().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn kill(process: i32) {
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
}

/// Waits until none of the processes runs.
fn wait_for_end_of(processes: &[i32]) {
    let runs = |process: &i32| PathBuf::from(format!("/proc/{process}/exe")).read_link().is_ok();
    waiting::wait_until(&format!("the end of processes {processes:?}"), || !processes.iter().any(runs));
}

fn a_service_does_not_start_without_a_token_or_with_one_that_all_users_can_read() {
    let folder = Folder::new("open");
    let path = folder.0.join("session.token");
    let worker = |args: &[&str]| {
        let mut worker = disco();
        worker.args(["worker", "--connect", "127.0.0.1:1"]).args(args);
        worker.env_remove("DISCO_TOKEN").env_remove("DISCO_TOKEN_FILE").output().unwrap()
    };
    let none = worker(&["--reconnect"]);
    assert!(none.status.code() == Some(1) && err(&none).contains("needs a token"), "{none:?}");
    assert!(disco().arg("token").arg(&path).status().unwrap().success());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let file = path.to_str().unwrap();
    let why = format!(
        "all users can read the token file {file}, and so join or command the session: run `chmod 600 {file}`\n"
    );
    let refused = worker(&["--reconnect", "--token-file", file]);
    assert_eq!((refused.status.code(), err(&refused)), (Some(1), format!("disco: {why}")));
    let warned = worker(&["--wait", "0", "--token-file", file]);
    assert!(err(&warned).starts_with(&format!("disco: warning: {why}disco: joining ")), "{warned:?}");
}

fn a_node_refuses_more_workers_than_its_limit_and_serves_the_next_session() {
    let mut service = Service::start("limit", &["--max-workers", "1"]);
    let refused = service.session("hello", "4").wait_with_output().unwrap();
    let why = "the controller assigns 2 workers, and this node accepts 1 to 1";
    assert!(!refused.status.success() && err(&refused).contains(why), "{refused:?}");
    let said = BufReader::new(service.node.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.into_iter().any(|line| line.contains(why)));
    let served = service.session("hello", "2").wait_with_output().unwrap();
    assert!(served.status.success(), "{served:?}");
}

fn no_process_is_left_when_the_supervisor_is_killed() {
    let mut service = Service::start("supervisor", &[]);
    let (run, processes) = service.dozing();
    service.node.kill().unwrap();
    service.node.wait().unwrap();
    wait_for_end_of(&processes);
    let text = err(&run.wait_with_output().unwrap());
    assert!(text.contains("node 1 (") && text.contains(" with workers 2 to 3 lost: "), "{text}");
}

fn a_killed_node_leaves_no_worker_and_is_replaced() {
    let mut service = Service::start("node", &[]);
    let (run, processes) = service.dozing();
    kill(processes[0]);
    wait_for_end_of(&processes);
    let text = err(&run.wait_with_output().unwrap());
    assert!(text.contains(" with workers 2 to 3 lost: its connection was closed"), "{text}");
    let mut said = BufReader::new(service.node.stderr.take().unwrap()).lines().map(Result::unwrap);
    let end = "disco: the node has ended: signal: 9 (SIGKILL); waiting for the next session";
    assert!(said.any(|line| line == end));
    let served = service.session("hello", "2").wait_with_output().unwrap();
    assert!(served.status.success(), "{served:?}");
}

fn a_node_that_sigterm_stops_tells_the_controller_so() {
    let service = Service::start("told", &[]);
    let (run, processes) = service.dozing();
    kill_process(Pid::from_child(&service.node), Signal::TERM).unwrap();
    wait_for_end_of(&processes);
    let text = err(&run.wait_with_output().unwrap());
    assert!(text.contains(" with workers 2 to 3 lost: the node was told to stop by SIGTERM"), "{text}");
}

fn a_killed_controller_leaves_no_worker_and_the_node_waits_for_the_next() {
    let service = Service::start("controller", &[]);
    let (mut run, processes) = service.dozing();
    let here = children(run.id() as i32);
    assert_eq!(here.len(), 1, "worker 1 is a process of the controller's machine");
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for_end_of(&[processes, here].concat());
    let served = service.session("hello", "2").wait_with_output().unwrap();
    assert!(served.status.success(), "{served:?}");
}
