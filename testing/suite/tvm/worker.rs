//! TVM's own controller (`ProcessSession`) with workers of this program.

use disco_conformance::waiting::wait_until;

use super::python;

super::tests!(
    tvm_s_controller_gets_values_of_every_kind_from_our_workers,
    tvm_s_controller_copies_tensors_to_and_from_our_workers,
    a_failure_raises_in_tvm_s_controller_and_is_printed_with_worker_and_function,
    our_workers_of_tvm_s_session_share_the_local_data_plane,
    a_worker_killed_in_tvm_s_session_ends_the_collective_of_the_others,
    a_failure_ends_the_collective_of_the_others_and_they_meet_again,
    our_workers_end_with_tvm_s_controller,
    a_worker_inside_a_function_is_killed_after_the_end_of_tvm_s_controller,
);

fn tvm_s_controller_gets_values_of_every_kind_from_our_workers() {
    let script = r#"
session = disco.ProcessSession(3, entrypoint="disco_tvm")
disco_tvm.on_worker_0("tests.tvm.bytes")
def check(name, argument, expected):
    result = session.get_global_func(name)(argument)
    again = session.get_global_func(name)(result) if name == "tests.disco.add_one" else None
    for worker in (1, 2):
        value = result.debug_get_from_remote(worker)
        assert value == expected, (name, argument, value)
        if again is not None:
            assert again.debug_get_from_remote(worker) == expected + 1
check("tests.disco.add_one", 41, 42)
check("tests.disco.add_one", -(2**63), -(2**63) + 1)
check("tests.disco.add_one_float", 0.25, 0.75)
for text in ("", "short", 'a text above eight bytes, "quoted" — ü'):
    check("tests.disco.str", text, text + "_suffix")
    check("tests.disco.str_obj", text, text + "_suffix")
check("tests.disco.shape_tuple", Shape([1, 2, 3]), Shape([1, 2, 3, 4, 5]))
check("tests.tvm.bytes", b"\x01\x02", b"\x02\x01")
check("tests.tvm.bytes", bytes(range(256)), bytes(reversed(range(256))))
session._sync_all()
print("worker id", list(session.get_global_func("runtime.disco.worker_id")().debug_get_from_remote(2)))
session.shutdown()
print("end")
"#;
    let Some((out, err)) = python::run(script) else { return };
    assert_eq!(out, "worker id [1]\nend\n", "{err}");
}

fn tvm_s_controller_copies_tensors_to_and_from_our_workers() {
    let script = r#"
session = disco.ProcessSession(2, entrypoint="disco_tvm")
disco_tvm.on_worker_0("tests.tvm.large")
source = np.arange(100000, dtype="float32").reshape(1000, 100)
array = session.empty((1000, 100), "float32")
array.debug_copy_from(0, source)
array.debug_copy_from(1, source)
sums = session.get_global_func("tests.disco.add_one_tensor")(array)
np.testing.assert_equal(sums.debug_get_from_remote(1).numpy(), source + 1)
large = session.get_global_func("tests.tvm.large")()
np.testing.assert_equal(large.debug_get_from_remote(1).numpy(), np.arange(1 << 18, dtype="float32").reshape(512, 512))
# Worker 0 is TVM's own, so these don't concern our workers.
host = tvm.runtime.tensor(np.zeros((1000, 100), "float32"))
session.copy_from_worker_0(host, sums)
session.sync_worker_0()
np.testing.assert_equal(host.numpy(), source + 1)
session.copy_to_worker_0(host, array)
session.sync_worker_0()
only = session.copy_to_worker_0(host)
session._sync_all()
print(only.debug_get_from_remote(1))
for dtype in ("int8", "uint8", "float16", "float64", "int64", "bool"):
    array = session.empty((3,), dtype)
    array.debug_copy_from(1, np.array([1, 0, 1], dtype))
    assert array.debug_get_from_remote(1).numpy().tolist() == [1, 0, 1], dtype
session.shutdown()
print("end")
"#;
    let Some((out, err)) = python::run(script) else { return };
    assert_eq!(out, "None\nend\n", "{err}");
}

fn a_failure_raises_in_tvm_s_controller_and_is_printed_with_worker_and_function() {
    let script = r#"
session = disco.ProcessSession(3, entrypoint="disco_tvm")
disco_tvm.on_worker_0("tests.tvm.fail", "tests.tvm.panic", "tests.tvm.unknown")
for name in ("tests.tvm.fail", "tests.tvm.panic", "tests.tvm.unknown"):
    session.get_global_func(name)()
    print(name, "no error" != raised(lambda: session._sync_worker(2)))
# The worker has recovered, and the others as well once they have reported.
print(raised(lambda: session._sync_worker(1)) != "no error", raised(lambda: session._sync_worker(1)))
result = session.get_global_func("tests.disco.add_one")(1)
print(result.debug_get_from_remote(1), result.debug_get_from_remote(2))
session.shutdown()
print("end")
"#;
    let Some((out, err)) = python::run(script) else { return };
    let expected = "tests.tvm.fail True\ntests.tvm.panic True\ntests.tvm.unknown True\nTrue no error\n2 2\nend\n";
    assert_eq!(out, expected, "{err}");
    for line in [
        "[disco] worker 2: tests.tvm.fail (command 2, register 2): no luck",
        "worker 2: tests.tvm.panic (command ",
        "panicked: out of luck",
        "no worker function `tests.tvm.unknown`",
        "[disco] worker 1: tests.tvm.fail (command 2, register 2): no luck",
    ] {
        assert!(err.contains(line), "{line} is missing in:\n{err}");
    }
}

fn our_workers_of_tvm_s_session_share_the_local_data_plane() {
    let script = r#"
session = disco.ProcessSession(4, entrypoint="disco_tvm")
disco_tvm.on_worker_0("tests.tvm.ranks")
for round in range(2):
    disco_tvm.init_ccl(session)
    ranks = session.get_global_func("tests.tvm.ranks")()
    sums = session.empty((3,), "float32")
    session.get_global_func("disco.all_reduce")(ranks, sums, "sum", False)
    maxima = session.empty((3,), "float32")
    session.allreduce(ranks, maxima, "max", False)
    all = session.empty((9,), "float32")
    session.allgather(ranks, all, False)
    for worker in (1, 2, 3):
        print(sums.debug_get_from_remote(worker).numpy().tolist(), maxima.debug_get_from_remote(worker).numpy().tolist())
    print(all.debug_get_from_remote(2).numpy().tolist())
session.shutdown()
print("end")
"#;
    let Some((out, err)) = python::run(script) else { return };
    let one = "[6.0, 6.0, 6.0] [3.0, 3.0, 3.0]\n".repeat(3) + "[1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]\n";
    assert_eq!(out, one.repeat(2) + "end\n", "{err}");
}

fn a_worker_killed_in_tvm_s_session_ends_the_collective_of_the_others() {
    let script = r#"
import signal, threading, time
session = disco.ProcessSession(4, entrypoint="disco_tvm")
disco_tvm.on_worker_0("tests.tvm.ranks", "tests.tvm.pid")
disco_tvm.init_ccl(session)
ranks = session.get_global_func("tests.tvm.ranks")()
sums = session.empty((3,), "float32")
pid = session.get_global_func("tests.tvm.pid")().debug_get_from_remote(3)
session._sync_all()
all_reduce = session.get_global_func("disco.all_reduce")
session._sync_all()
os.kill(pid, signal.SIGSTOP)
all_reduce(ranks, sums, "sum", False)
os.kill(pid, signal.SIGKILL)
for worker in (1, 2):
    print(raised(lambda: session._sync_worker(worker)) != "no error")
sys.stdout.flush()
# TVM's controller can't end a session with a dead worker.
os._exit(0)
"#;
    let Some((out, err)) = python::run(script) else { return };
    assert_eq!(out, "True\nTrue\n", "{err}");
    assert!(err.contains("[disco] worker 1: disco.all_reduce (command "), "{err}");
    assert!(err.contains("aborted, because worker 3 lost: its process ended"), "{err}");
}

fn a_failure_ends_the_collective_of_the_others_and_they_meet_again() {
    let script = r#"
session = disco.ProcessSession(4, entrypoint="disco_tvm")
disco_tvm.on_worker_0("tests.tvm.ranks", "tests.tvm.fail_on")
disco_tvm.init_ccl(session)
ranks = session.get_global_func("tests.tvm.ranks")()
sums = session.empty((3,), "float32")
all_reduce = session.get_global_func("disco.all_reduce")
for failing in (1, 0):
    session.get_global_func("tests.tvm.fail_on")(failing)
    all_reduce(ranks, sums, "sum", False)
    print([raised(lambda: session._sync_worker(worker)) != "no error" for worker in (1, 2, 3)])
    disco_tvm.init_ccl(session)
    all_reduce(ranks, sums, "sum", False)
    print([sums.debug_get_from_remote(worker).numpy().tolist() for worker in (1, 2, 3)])
session.shutdown()
print("end")
"#;
    let begun = std::time::Instant::now();
    let Some((out, err)) = python::run(script) else { return };
    let one = "[True, True, True]\n[[6.0, 6.0, 6.0], [6.0, 6.0, 6.0], [6.0, 6.0, 6.0]]\n";
    assert_eq!(out, one.repeat(2) + "end\n", "{err}");
    // A worker begins the collective before or after the failure is known to it; the texts of its error differ.
    let mut of_worker_3 = err.lines().filter(|line| line.starts_with("[disco] worker 3: "));
    assert!(of_worker_3.any(|line| line.contains("worker 2: tests.tvm.fail_on")), "{err}");
    // The deadline of a collective is five minutes.
    assert!(begun.elapsed() < std::time::Duration::from_secs(120));
}

fn our_workers_end_with_tvm_s_controller() {
    check_end("");
}

fn a_worker_inside_a_function_is_killed_after_the_end_of_tvm_s_controller() {
    check_end("session.get_global_func('tests.tvm.sleep')()");
}

/// Checks that a worker ends after its controller, which has called a function last.
fn check_end(call: &str) {
    let script = r#"
session = disco.ProcessSession(2, entrypoint="disco_tvm")
disco_tvm.on_worker_0("tests.tvm.pid", "tests.tvm.sleep")
print(session.get_global_func("tests.tvm.pid")().debug_get_from_remote(1))
CALL
sys.stdout.flush()
# Without TVM's own cleanup, which kills workers.
os._exit(0)
"#;
    let Some((out, err)) = python::run(&script.replace("CALL", call)) else { return };
    let pid: u32 = out.trim().parse().unwrap_or_else(|_| panic!("{out}\n{err}"));
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    // A zombie waits for the process that has adopted it.
    wait_until("the end of the worker", || state().is_none_or(|state| state.contains(") Z ")));
}
