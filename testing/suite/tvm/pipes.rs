//! Both of our ends of TVM's dialect, without TVM: a lane whose workers are processes or nodes of this program.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;

use disco::tvm::{self, JoinOptions, NodeOptions, Options, WorkerConfig};
use disco::{DType, Deadlines, Error, LaneSession, Shape, Tensor, Value, WorkerId, World, block_on};
use disco_channel::tvm::Endpoint;
use disco_core::{Link, worker};
use rustix::process::{Pid, Signal, kill_process};

super::tests!(
    values_of_every_kind_cross_a_lane_of_tvm_to_our_workers,
    a_failure_of_our_worker_crosses_a_lane_of_tvm,
    a_killed_worker_of_a_lane_of_tvm_is_lost_with_its_signal,
    a_worker_of_a_lane_of_tvm_that_sends_garbage_is_lost,
    our_node_serves_our_controller_in_tvm_s_dialect,
    a_lost_node_is_the_loss_of_its_workers,
);

/// Environment variable that makes this program a worker of a lane of TVM.
const ROLE: &str = "DISCO_TEST_TVM_ROLE";

/// Serves as a worker if this process was started as one. The command line ends with `ID WORKERS GROUPS 0 0`.
pub(crate) fn serve() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let arguments: Vec<String> = std::env::args().collect();
    let [.., id, workers, groups, "0", "0"] = &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        panic!("{arguments:?}")
    };
    let id = WorkerId::new(id.parse().unwrap());
    let socket = || std::fs::File::from(std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().unwrap());
    if role == "garbage" && id.index() == 1 {
        std::io::Write::write_all(&mut socket(), &[0xff; 8]).unwrap();
        disco_conformance::waiting::hang();
    }
    let config = WorkerConfig::new(World::new(workers.parse().unwrap(), groups.parse().unwrap()).unwrap());
    let link = Arc::new(Link::bare(Arc::default()));
    let endpoint = Endpoint::new((id, WorkerId::new(0)), socket(), socket(), link, config.value_limit);
    worker::run(id, config, endpoint.recovering()).unwrap();
    Some(ExitCode::SUCCESS)
}

fn options(workers: usize, role: &str) -> Options {
    let mut options = Options::new(WorkerConfig::new(World::new(workers, 1).unwrap()));
    options.program = std::env::current_exe().unwrap();
    options.arguments = Vec::new();
    options.variables = vec![(ROLE.into(), role.into())];
    options
}

fn start(workers: usize) -> LaneSession {
    tvm::processes(options(workers, "worker"), Deadlines::default()).unwrap()
}

/// Checks values, tensors and handles on all workers of a session.
async fn check_values(session: &LaneSession, are_nodes: bool) {
    let all = |value: Value| vec![value; session.world().size()];
    let result = session.call("tests.disco.add_one", (41,)).await.unwrap();
    let again = session.call("tests.disco.add_one", (&result,)).await.unwrap();
    assert_eq!(session.values(&again).await.unwrap(), all(Value::Int(43)));
    let text = session.call("tests.disco.str", ("a text above eight bytes",)).await.unwrap();
    assert_eq!(session.values(&text).await.unwrap(), all(Value::from("a text above eight bytes_suffix")));
    let shape = session.call("tests.disco.shape_tuple", (Shape::from([1, 2]),)).await.unwrap();
    assert_eq!(session.values(&shape).await.unwrap(), all(Shape::from([1, 2, 4, 5]).into()));
    let bytes = session.call("tests.tvm.bytes", (Value::from(vec![1u8, 2, 3]),)).await.unwrap();
    assert_eq!(session.values(&bytes).await.unwrap(), all(Value::from(vec![3u8, 2, 1])));
    let large = session.call("tests.tvm.large", ()).await.unwrap();
    let expected: Vec<f32> = (0..1 << 18).map(|index| index as f32).collect();
    for value in session.values(&large).await.unwrap() {
        let Value::Tensor(tensor) = value else { panic!("{value}") };
        assert_eq!(tensor.to_vec::<f32>().unwrap(), expected);
    }
    if are_nodes {
        return;
    }
    let tensor = Tensor::from_slice(&expected, [512, 512]).unwrap();
    session.set(&result, WorkerId::new(0), Value::Tensor(tensor)).await.unwrap();
    let sums = session.call("tests.disco.add_one_tensor", (&large,)).await.unwrap();
    let host = Tensor::zeros(DType::F32, [512, 512]).unwrap();
    session.copy_from_worker_0(&host, &sums).await.unwrap();
    session.sync_all().await.unwrap();
    assert_eq!(host.to_vec::<f32>().unwrap()[..3], [1.0, 2.0, 3.0]);
}

fn values_of_every_kind_cross_a_lane_of_tvm_to_our_workers() {
    let session = start(3);
    block_on(async {
        check_values(&session, false).await;
        // A tensor that does not fit is an error of this copy.
        let large = session.call("tests.tvm.large", ()).await.unwrap();
        session.copy_from_worker_0(&Tensor::zeros(DType::F32, [2]).unwrap(), &large).await.unwrap();
        session.sync_all().await.unwrap();
        let error = session.call("tests.disco.add_one", (1,)).await.unwrap_err().to_string();
        assert!(error.contains("worker 0: copy_from_worker_0 (command "), "{error}");
        session.recover().await.unwrap();
        session.call("tests.disco.add_one", (1,)).await.unwrap();
        session.shutdown().await.unwrap();
    });
}

fn a_failure_of_our_worker_crosses_a_lane_of_tvm() {
    let session = start(2);
    block_on(async {
        let result = session.call("tests.tvm.fail", ()).await.unwrap();
        let error = session.value(&result, WorkerId::new(1)).await.unwrap_err();
        assert!(matches!(&error, Error::Worker(failure) if failure.worker == WorkerId::new(1)), "{error:?}");
        assert!(error.to_string().contains("worker 1: tests.tvm.fail (command"), "{error}");
        session.shutdown().await.unwrap();
    });
}

fn a_killed_worker_of_a_lane_of_tvm_is_lost_with_its_signal() {
    let session = start(2);
    block_on(async {
        let pid = session.call("tests.tvm.pid", ()).await.unwrap();
        let Value::Int(pid) = session.value(&pid, WorkerId::new(1)).await.unwrap() else { panic!() };
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        let error = session.sync_all().await.unwrap_err();
        assert_eq!(error.to_string(), "worker 1 lost: its process ended: signal: 9 (SIGKILL)");
    });
}

fn a_worker_of_a_lane_of_tvm_that_sends_garbage_is_lost() {
    let error = tvm::processes(options(2, "garbage"), Deadlines::default()).unwrap_err();
    let expected = "worker 1 lost: it sent garbage: a packet of 18446744073709551615 bytes; the limit is 68719476736 \
                    before the worker answered";
    assert_eq!(error.to_string(), expected);
}

/// A session of `nodes` nodes with two workers each, which are threads of this process.
fn start_nodes(nodes: usize) -> (LaneSession, Vec<thread::JoinHandle<disco::Result<()>>>) {
    let mut options = NodeOptions::new(nodes, WorkerConfig::new(World::new(2 * nodes, 1).unwrap()));
    let started: Arc<Mutex<Vec<_>>> = Arc::default();
    options.announce = Arc::new({
        let started = started.clone();
        move |address| {
            for _ in 0..nodes {
                let join = JoinOptions::new(address.to_string());
                started.lock().unwrap().push(thread::spawn(move || tvm::join(&join)));
            }
        }
    });
    let session = tvm::nodes(options, Deadlines::default()).unwrap();
    let started = std::mem::take(&mut *started.lock().unwrap());
    (session, started)
}

fn our_node_serves_our_controller_in_tvm_s_dialect() {
    let (session, nodes) = start_nodes(2);
    block_on(async {
        check_values(&session, true).await;
        let host = Tensor::zeros(DType::F32, [2]).unwrap();
        let refused = session.copy_from_worker_0(&host, &session.function("tests.tvm.pid").await.unwrap()).await;
        assert!(
            refused.unwrap_err().to_string().starts_with("copy_from_worker_0: TVM's nodes do not understand tensors")
        );
        // A failure is told in the reply, and the workers of the node recover.
        let result = session.call("tests.tvm.fail", ()).await.unwrap();
        let error = session.value(&result, WorkerId::new(3)).await.unwrap_err();
        assert!(error.to_string().contains("tests.tvm.fail (command"), "{error}");
        let result = session.call("tests.disco.add_one", (1,)).await.unwrap();
        assert_eq!(session.value(&result, WorkerId::new(3)).await.unwrap(), Value::Int(2));
        session.shutdown().await.unwrap();
    });
    nodes.into_iter().for_each(|node| node.join().unwrap().unwrap());
}

fn a_lost_node_is_the_loss_of_its_workers() {
    let mut options = NodeOptions::new(1, WorkerConfig::new(World::new(2, 1).unwrap()));
    options.announce = Arc::new(|address| {
        thread::spawn(move || drop(std::net::TcpStream::connect(address).unwrap()));
    });
    let error = tvm::nodes(options, Deadlines::default()).unwrap_err();
    assert_eq!(error.to_string(), "workers 0 to 1 lost: its connection was closed before the worker answered");
}
