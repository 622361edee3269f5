//! Our controller with TVM's own workers (`tvm.exec.disco_worker`).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disco::tvm::{self, Options, WorkerConfig};
use disco::{
    DRef, DType, Deadlines, Device, Error, IntoArgs, LaneSession, Shape, Tensor, Value, WorkerId, World, block_on,
};
use rustix::process::{Pid, Signal, kill_process};

use super::python;

super::tests!(
    workers_of_tvm_return_values_of_every_kind,
    tensors_are_copied_to_and_from_workers_of_tvm,
    handles_are_arguments_and_freed_registers_are_reused_by_tvm,
    a_function_that_fails_is_the_loss_of_its_worker_of_tvm,
    an_unknown_function_is_the_loss_of_workers_of_tvm,
    a_killed_worker_of_tvm_is_lost_with_its_signal,
    a_worker_of_tvm_that_can_not_start_is_an_error_with_its_last_line,
    commands_that_tvm_does_not_understand_are_refused_and_the_session_goes_on,
    a_worker_of_tvm_that_is_stuck_at_the_shutdown_is_killed,
);

/// Lines that workers have printed.
type Lines = Arc<Mutex<Vec<String>>>;

/// Options for `workers` workers of TVM, or none without TVM. The lines that they print are collected.
fn options(workers: usize, modules: &[(&str, &str)]) -> Option<(Options, Lines)> {
    let mut path = python::path()?;
    for (name, text) in modules {
        path.push(":");
        path.push(python::module(name, text));
    }
    let mut options = Options::new(WorkerConfig::new(World::new(workers, 1).unwrap()));
    options.variables.push(("PYTHONPATH".into(), path));
    let lines = Lines::default();
    options.output = Arc::new({
        let lines = lines.clone();
        move |worker, is_err, line: &[u8]| {
            let stream = if is_err { "error" } else { "output" };
            lines.lock().unwrap().push(format!("{worker} {stream}: {}", String::from_utf8_lossy(line)));
        }
    });
    Some((options, lines))
}

fn start(workers: usize) -> Option<LaneSession> {
    Some(tvm::processes(options(workers, &[])?.0, Deadlines::default()).unwrap())
}

async fn call(session: &LaneSession, name: &str, args: impl IntoArgs) -> DRef {
    session.call(name, args).await.unwrap()
}

fn workers_of_tvm_return_values_of_every_kind() {
    let Some(session) = start(2) else { return };
    block_on(async {
        let check = async |name: &str, arg: Value, expected: Value| {
            let result = call(&session, name, (arg.clone(),)).await;
            for worker in [0, 1] {
                let value = session.value(&result, WorkerId::new(worker)).await.unwrap();
                assert_eq!(value, expected, "{name}({arg}) on worker {worker}");
            }
            assert_eq!(session.values(&result).await.unwrap(), [expected.clone(), expected]);
        };
        for int in [41, i64::MIN, -1] {
            check("tests.disco.add_one", Value::Int(int), Value::Int(int + 1)).await;
        }
        check("tests.disco.add_one_float", Value::Float(0.25), Value::Float(0.75)).await;
        for text in ["", "short", "a text above eight bytes, \"quoted\" — ü"] {
            check("tests.disco.str", Value::from(text), Value::from(format!("{text}_suffix"))).await;
            check("tests.disco.str_obj", Value::from(text), Value::from(format!("{text}_suffix"))).await;
        }
        check("tests.disco.shape_tuple", Shape::from([1, 2, 3]).into(), Shape::from([1, 2, 3, 4, 5]).into()).await;
        let identity = |value: Value| check("testing.echo", value.clone(), value);
        let device: Device = "cpu:0".parse().unwrap();
        // A worker of TVM crashes when it returns a register without a value.
        for value in [
            Value::Bool(true),
            Value::DType(DType::BF16),
            Value::Device(device),
            Value::from(vec![1u8, 2, 3]),
            Value::from((0..=255).collect::<Vec<u8>>()),
        ] {
            identity(value).await;
        }
        session.sync_all().await.unwrap();
        session.sync_worker(WorkerId::new(1)).await.unwrap();
        session.shutdown().await.unwrap();
    });
}

fn tensors_are_copied_to_and_from_workers_of_tvm() {
    let Some(session) = start(2) else { return };
    block_on(async {
        // Above 64 KiB, so that the text of the debug object is large.
        let elements: Vec<f32> = (0..100_000).map(|index| index as f32 / 8.0).collect();
        let tensor = Tensor::from_slice(&elements, [1000, 100]).unwrap();
        let shape = Shape::from([1000, 100]);
        let args = (Value::Shape(shape.clone()), Value::DType(DType::F32), Value::None, Value::Bool(false), false);
        let handle = call(&session, "runtime.disco.empty", args).await;
        for worker in [0, 1].map(WorkerId::new) {
            session.set(&handle, worker, Value::Tensor(tensor.clone())).await.unwrap();
        }
        let sums = call(&session, "tests.disco.add_one_tensor", (&handle,)).await;
        let expected: Vec<f32> = elements.iter().map(|element| element + 1.0).collect();
        for value in session.values(&sums).await.unwrap() {
            let Value::Tensor(value) = value else { panic!("{value}") };
            assert_eq!((value.to_vec::<f32>().unwrap(), value.shape()), (expected.clone(), &shape));
        }
        let host = Tensor::zeros(DType::F32, [1000, 100]).unwrap();
        session.copy_from_worker_0(&host, &sums).await.unwrap();
        session.sync_worker(WorkerId::new(0)).await.unwrap();
        assert_eq!(host.to_vec::<f32>().unwrap(), expected);
        session.copy_to_worker_0(&host, &handle).await.unwrap();
        let [first, second] = &session.values(&handle).await.unwrap()[..] else { panic!() };
        let elements_of = |value: &Value| match value {
            Value::Tensor(tensor) => tensor.to_vec::<f32>().unwrap(),
            other => panic!("{other}"),
        };
        assert_eq!((elements_of(first), elements_of(second)), (expected, elements));
        // A value that is no tensor replaces the content of the register.
        session.set(&handle, WorkerId::new(1), Value::Int(7)).await.unwrap();
        assert_eq!(session.value(&handle, WorkerId::new(1)).await.unwrap(), Value::Int(7));
        session.shutdown().await.unwrap();
    });
}

fn handles_are_arguments_and_freed_registers_are_reused_by_tvm() {
    let Some(session) = start(2) else { return };
    block_on(async {
        let add = session.function("tests.disco.add_one").await.unwrap();
        let mut last = session.call(&add, (0,)).await.unwrap();
        // Far more calls than a connection buffers.
        for _ in 0..20_000 {
            last = session.call(&add, (&last,)).await.unwrap();
        }
        assert_eq!(session.values(&last).await.unwrap(), [Value::Int(20_001), Value::Int(20_001)]);
        session.shutdown().await.unwrap();
    });
}

fn a_function_that_fails_is_the_loss_of_its_worker_of_tvm() {
    let Some((options, lines)) = options(2, &[]) else { return };
    let session = tvm::processes(options, Deadlines::default()).unwrap();
    let error = block_on(async {
        // A string is no number.
        let result = call(&session, "tests.disco.add_one", ("text",)).await;
        session.value(&result, WorkerId::new(1)).await.unwrap_err()
    });
    let text = error.to_string();
    let lost = |worker| format!("worker {worker} lost: its process ended: exit status: 1");
    assert!(text == lost(0) || text == lost(1), "{text}");
    drop(session);
    let lines = lines.lock().unwrap().join("\n");
    assert!(lines.contains("worker 1 error: ") && lines.contains("TypeError"), "{lines}");
}

fn an_unknown_function_is_the_loss_of_workers_of_tvm() {
    let Some((options, lines)) = options(1, &[]) else { return };
    let session = tvm::processes(options, Deadlines::default()).unwrap();
    let error = block_on(async {
        session.function("tests.no_such_function").await.unwrap();
        session.sync_all().await.unwrap_err()
    });
    assert_eq!(error.to_string(), "worker 0 lost: its process ended: exit status: 1");
    drop(session);
    let lines = lines.lock().unwrap().join("\n");
    assert!(lines.contains("Cannot find global function: tests.no_such_function"), "{lines}");
}

/// Functions of Python for these tests.
const HELPERS: &str = r#"
import os, threading, tvm_ffi
@tvm_ffi.register_global_func("tests.tvm.pid")
def _pid():
    return os.getpid()
@tvm_ffi.register_global_func("tests.tvm.sleep")
def _sleep():
    threading.Event().wait()
"#;

fn options_with_helpers(workers: usize) -> Option<Options> {
    let (mut options, _) = options(workers, &[("disco_test_helpers", HELPERS)])?;
    let run = "import disco_test_helpers, runpy; runpy.run_module('tvm.exec.disco_worker', None, '__main__', True)";
    options.arguments = ["-c", run].map(Into::into).to_vec();
    Some(options)
}

/// A session of workers of TVM with the functions of [`HELPERS`].
fn start_with_helpers(workers: usize) -> Option<LaneSession> {
    Some(tvm::processes(options_with_helpers(workers)?, Deadlines::default()).unwrap())
}

fn a_killed_worker_of_tvm_is_lost_with_its_signal() {
    let Some(session) = start_with_helpers(3) else { return };
    block_on(async {
        let pid = call(&session, "tests.tvm.pid", ()).await;
        let Value::Int(pid) = session.value(&pid, WorkerId::new(1)).await.unwrap() else { panic!() };
        call(&session, "tests.tvm.sleep", ()).await;
        let waiting = session.sync_all();
        let killed = async {
            kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
            waiting.await
        };
        assert_eq!(killed.await.unwrap_err().to_string(), "worker 1 lost: its process ended: signal: 9 (SIGKILL)");
    });
}

fn a_worker_of_tvm_that_can_not_start_is_an_error_with_its_last_line() {
    let mut options = Options::new(WorkerConfig::new(World::new(2, 1).unwrap()));
    options.output = Arc::new(|_, _, _| {});
    options.program = "/no/such/python".into();
    let error = tvm::processes(options.clone(), Deadlines::default()).unwrap_err().to_string();
    assert!(error.starts_with("worker 0: /no/such/python can't be started: No such file"), "{error}");
    // The rest needs an interpreter.
    if python::path().is_none() {
        return;
    }
    options.program = "python3".into();
    options.arguments = ["-S", "-E", "-m", "tvm.exec.disco_worker"].map(Into::into).to_vec();
    let error = tvm::processes(options.clone(), Deadlines::default()).unwrap_err().to_string();
    let expected = " lost: its process ended: exit status: 1 before the worker answered; its last line on standard error \
                    is: ";
    assert!(
        error.starts_with("worker ") && error.contains(expected) && error.contains("No module named 'tvm"),
        "{error}"
    );
    options.arguments = vec!["-c".into(), "import signal; signal.pause()".into()];
    options.start = Duration::from_millis(300);
    let error = tvm::processes(options, Deadlines::default()).unwrap_err().to_string();
    assert_eq!(error, "start of TVM's workers: no end after 300ms: no answer from worker 0, worker 1");
}

fn commands_that_tvm_does_not_understand_are_refused_and_the_session_goes_on() {
    let Some(session) = start(2) else { return };
    block_on(async {
        let add = session.function("tests.disco.add_one").await.unwrap();
        let tensor = Tensor::zeros(DType::F32, [2]).unwrap();
        let refused = session.call(&add, (tensor,)).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "call: TVM's workers do not understand a tensor as an argument of a call; set a register (`set`), and call \
             with its handle"
        );
        let refused = session.init_ccl("local", &[]).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Invalid(text) if text.contains("do not understand `disco.init_ccl`")),
            "{refused}"
        );
        let refused = session.call_returning(1, &add, (1,)).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Invalid(text) if text.contains("TVM's workers do not understand")),
            "{refused}"
        );
        let result = session.call(&add, (1,)).await.unwrap();
        assert_eq!(session.value(&result, WorkerId::new(1)).await.unwrap(), Value::Int(2));
        session.shutdown().await.unwrap();
    });
}

fn a_worker_of_tvm_that_is_stuck_at_the_shutdown_is_killed() {
    let Some(options) = options_with_helpers(2) else { return };
    let limits = Deadlines::default().with_close(Duration::from_millis(300));
    let session = tvm::processes(options, limits).unwrap();
    let begun = Instant::now();
    let error = block_on(async {
        session.sync_all().await.unwrap();
        call(&session, "tests.tvm.sleep", ()).await;
        session.shutdown().await.unwrap_err()
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
    let text = error.to_string();
    assert!(text.contains("worker 0 (killed), worker 1 (killed)"), "{text}");
}
