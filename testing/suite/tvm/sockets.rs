//! TVM's sessions over sockets, in both directions.

use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use disco::tvm::{self, Authentication, JoinOptions, NodeOptions, WorkerConfig};
use disco::{Deadlines, Tensor, Value, WorkerId, World, block_on};

use super::python;

super::tests!(
    our_node_serves_tvm_s_controller,
    our_controller_commands_nodes_of_tvm,
    addresses_outside_of_the_loopback_need_the_flag,
);

fn our_node_serves_tvm_s_controller() {
    let script = r#"
import socket, subprocess
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
environment = dict(os.environ, DISCO_TVM_CONNECT=f"127.0.0.1:{port}")
node = subprocess.Popen(disco_tvm.PROGRAM, env=environment)
# Worker 1, on TVM's own node, is a process of this program, too.
import tvm_ffi
create = lambda workers: disco.ProcessSession(workers, entrypoint="disco_tvm")
tvm_ffi.register_global_func("runtime.disco.create_socket_session_local_workers", create, override=True)
session = disco.SocketSession(2, 2, 1, "127.0.0.1", port)
result = session.get_global_func("tests.disco.add_one")(41)
print([result.debug_get_from_remote(worker) for worker in range(4)])
result = session.get_global_func("tests.disco.str")("a longer text")
print([result.debug_get_from_remote(worker) for worker in range(4)])
array = session.empty((3,), "float32")
for worker in range(4):
    array.debug_copy_from(worker, np.full(3, worker + 1, "float32"))
print([array.debug_get_from_remote(worker).numpy().tolist() for worker in range(4)])
disco_tvm.init_ccl(session)
sums = session.empty((3,), "float32")
session.get_global_func("disco.all_reduce")(array, sums, "sum", False)
print([sums.debug_get_from_remote(worker).numpy().tolist() for worker in (2, 3)])
del result, array, sums
session._sync_all()
session.shutdown()
print("node", node.wait(30))
"#;
    let Some((out, err)) = python::run(script) else { return };
    let expected = "[42, 42, 42, 42]\n\
        ['a longer text_suffix', 'a longer text_suffix', 'a longer text_suffix', 'a longer text_suffix']\n\
        [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0], [4.0, 4.0, 4.0]]\n\
        [[7.0, 7.0, 7.0], [7.0, 7.0, 7.0]]\n\
        node 0\n";
    assert_eq!(out, expected, "{err}");
}

fn our_controller_commands_nodes_of_tvm() {
    let Some(path) = python::path() else { return };
    let nodes: Arc<Mutex<Vec<Child>>> = Arc::default();
    let mut options = NodeOptions::new(2, WorkerConfig::new(World::new(4, 1).unwrap()));
    options.announce = Arc::new({
        let nodes = nodes.clone();
        move |address| {
            for _ in 0..2 {
                let mut node = Command::new("python3");
                // Opens TVM's libraries before TVM.
                let run = "import disco_tvm, runpy; \
                           runpy.run_module('tvm.exec.disco_remote_socket_session', None, '__main__', True)";
                node.args(["-c", run, "127.0.0.1", &address.port().to_string(), "2"]);
                nodes.lock().unwrap().push(node.env("PYTHONPATH", &path).spawn().unwrap());
            }
        }
    });
    let session = tvm::nodes(options, Deadlines::default()).unwrap();
    block_on(async {
        let result = session.call("tests.disco.add_one", (41,)).await.unwrap();
        assert_eq!(session.values(&result).await.unwrap(), vec![Value::Int(42); 4]);
        let again = session.call("tests.disco.add_one", (&result,)).await.unwrap();
        assert_eq!(session.value(&again, WorkerId::new(3)).await.unwrap(), Value::Int(43));
        let text = session.call("tests.disco.str", ("a longer text",)).await.unwrap();
        assert_eq!(session.value(&text, WorkerId::new(2)).await.unwrap(), Value::from("a longer text_suffix"));
        let tensor = Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap();
        let refused = session.set(&result, WorkerId::new(2), Value::Tensor(tensor)).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "set: TVM's nodes do not understand tensors; only TVM's workers that are processes of this machine do"
        );
        session.set(&result, WorkerId::new(2), Value::Shape([1, 2].into())).await.unwrap();
        assert_eq!(session.value(&result, WorkerId::new(2)).await.unwrap(), Value::Shape([1, 2].into()));
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
    for mut node in nodes.lock().unwrap().drain(..) {
        assert!(node.wait().unwrap().success());
    }
}

fn addresses_outside_of_the_loopback_need_the_flag() {
    let why = "is not an address of the loopback, and TVM's sessions over sockets have no authentication; if only trusted \
               processes can reach it, say so with `--without-authentication` of `disco tvm-node`, or in a program that calls \
               `disco::tvm::join` with `Authentication::Without`";
    let refused = tvm::join(&JoinOptions::new("192.0.2.1:9000")).unwrap_err();
    assert_eq!(refused.to_string(), format!("the node: 192.0.2.1:9000 {why}"));
    let mut options = NodeOptions::new(1, WorkerConfig::new(World::new(1, 1).unwrap()));
    options.listen = "0.0.0.0:0".to_owned();
    let refused = tvm::nodes(options.clone(), Deadlines::default()).unwrap_err();
    assert_eq!(refused.to_string(), format!("the controller of TVM's nodes: 0.0.0.0:0 {why}"));
    // With the flag, it waits for nodes.
    (options.authentication, options.start) = (Authentication::Without, std::time::Duration::from_millis(50));
    let late = tvm::nodes(options, Deadlines::default()).unwrap_err();
    assert_eq!(late.to_string(), "start of TVM's nodes: no end after 50ms: 0 of 1 nodes have connected");
}
