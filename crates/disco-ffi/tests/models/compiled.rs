//! Models that TVM compiles (`models.py`), against numpy, and weights against TVM's own loader. Compiling needs TVM's
//! large wheel, so these tests run with `DISCO_LONG_TESTS`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};
use std::time::Duration;

use disco::error::ErrorKind;
use disco::function::{Args, BoxError, Function, IntoObject as _};
use disco::{
    DRef, Device, LaneSession, Object, Result, Shape, Tensor, Value, WorkerContext, WorkerId, block_on,
    register_function,
};
use disco_conformance::{Fetched, Required};
use disco_ffi::{Module, Weights};
use serde_json::Value as Json;

use super::{Plane, made};
use crate::{library, without_numbers};

/// Tests with and without TVM's compiler.
pub(crate) fn tests() -> Vec<crate::models::Test> {
    [compiled_tests::tests(), other_tests::tests()].concat()
}

mod compiled_tests {
    use super::*;

    crate::models::tests![
        compile;
        models_of_1_worker_give_numpy_s_results,
        models_of_2_workers_give_numpy_s_results,
        models_of_4_workers_give_numpy_s_results,
        a_pipeline_of_2_groups_of_1_worker_gives_numpy_s_results,
        a_pipeline_of_2_groups_of_2_workers_gives_numpy_s_results,
        a_worker_that_does_not_come_ends_a_model_with_its_name_and_the_operation,
        models_that_reduce_differently_are_a_mismatch_that_names_the_operation,
        an_argument_of_another_shape_is_the_machine_s_error,
        compiled_code_loads_and_binds_under_tvm_s_names,
        weights_are_those_of_tvm_s_own_loader,
        without_libtvm_runtime_the_error_lists_what_was_tried,
    ];
}

mod other_tests {
    use super::*;

    crate::models::tests![
        prepare;
        a_library_without_relax_functions_is_opened_as_it_is,
        a_model_that_is_not_there_is_an_error_with_its_path,
    ];
}

/// Paths of Python for TVM's package: the folders of the wheels.
const WHEELS: [&str; 7] = [
    "apache-tvm-0.27.0.post1",
    "apache-tvm-ffi-0.1.15.post2",
    "cloudpickle-3.1.2",
    "ml-dtypes-0.6.0",
    "numpy-2.4.6",
    "psutil-7.2.2",
    "typing-extensions-4.16.0",
];

/// The version for which the wheels are.
const PYTHON: &str = "python3.11";

/// The folder of libtvm_runtime.
pub(crate) fn runtime() -> Option<PathBuf> {
    Fetched::long("apache-tvm-0.27.0.post1/tvm/lib").path()
}

fn prepare() -> bool {
    library::compiled("globals.c").is_some()
}

/// Compiles the models once per run of the program.
fn compile() -> bool {
    static COMPILED: OnceLock<Result<(), String>> = OnceLock::new();
    if !prepare() {
        return false;
    }
    if env::var_os("DISCO_LONG_TESTS").is_none() {
        static SAID: Once = Once::new();
        SAID.call_once(|| eprintln!("skipped: TVM compiles models in long tests only (DISCO_LONG_TESTS)"));
        return false;
    }
    let is_required = Required::from_env().contains("tvm");
    if let Err(error) = Command::new(PYTHON).arg("--version").output() {
        assert!(!is_required, "DISCO_REQUIRE: {PYTHON}: {error}");
        eprintln!("skipped: {PYTHON}: {error}");
        return false;
    }
    let folders = WHEELS.iter().map(|wheel| Fetched::long(wheel).required_by("tvm").find());
    let Some(folders) = folders.collect::<Option<Vec<PathBuf>>>() else { return false };
    let compiled = COMPILED.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/models.py");
        for args in [&[][..], &["--weights"]] {
            let mut python = Command::new(PYTHON);
            python.arg(&script).args(args).arg(library::folder()).env("PYTHONPATH", env::join_paths(&folders).unwrap());
            let output = python.output().map_err(|error| error.to_string())?;
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(format!("{} {args:?}: {}: {text}", script.display(), output.status));
            }
        }
        Ok(())
    });
    compiled.as_ref().unwrap();
    true
}

register_function!("test.args_of_worker", args_of_worker);
register_function!("test.call_with", call_with);
register_function!("test.cpus", cpus);

/// The CPUs on which the worker's thread may run.
fn cpus(_: &mut WorkerContext) -> Result<Shape> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    Ok((0..1024).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as i64).collect::<Vec<_>>().into())
}

/// The array of the worker's position.
fn args_of_worker(ctx: &mut WorkerContext, args: Vec<Value>) -> Result<Value> {
    Ok(args[ctx.worker().index()].clone())
}

/// Calls the function of the worker's group, if the list has the worker. The items of `args` are the arguments.
fn call_with(
    ctx: &mut WorkerContext,
    workers: Shape,
    first: Function,
    second: Function,
    args: Vec<Value>,
) -> Result<Object, BoxError> {
    if !workers.contains(&(ctx.worker().index() as i64)) {
        return Ok(().into_object());
    }
    let args: Vec<Object> = args.into_iter().map(Object::from).collect();
    let function = if ctx.group().index() == 0 { first } else { second };
    function.call(ctx, &Args::of_objects(&args))
}

fn json(name: &str) -> Json {
    serde_json::from_str(&fs::read_to_string(made(name)).unwrap()).unwrap()
}

/// A tensor of a shape and elements.
fn tensor(json: &Json) -> Tensor {
    let shape: Vec<i64> = json[0].as_array().unwrap().iter().map(|extent| extent.as_i64().unwrap()).collect();
    Tensor::from_slice(&numbers(&json[1]), &shape[..]).unwrap()
}

fn numbers(json: &Json) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// A session with a model.
struct Running {
    session: LaneSession,
    model: Module,
}

impl Running {
    fn new(session: LaneSession, library: &str) -> Self {
        let model = block_on(Module::load_vm(&session, made(library), None)).unwrap();
        Self { session, model }
    }

    fn function(&self, name: &str) -> DRef {
        block_on(self.model.function(&self.session, name)).unwrap()
    }

    /// Calls the functions of the groups on workers of a list. `args` has an array for each worker.
    fn call(&self, workers: &[i64], functions: &[&str], args: &Json) -> DRef {
        let items = |args: &Json| args.as_array().unwrap().clone();
        let array = |args: Json| Value::from(items(&args).iter().map(|arg| tensor(arg).into()).collect::<Vec<Value>>());
        let args: Vec<Value> = items(args).into_iter().map(array).collect();
        let args = block_on(self.session.call("test.args_of_worker", (args,))).unwrap();
        let (first, second) = (self.function(functions[0]), self.function(functions[functions.len() - 1]));
        block_on(self.session.call("test.call_with", (Shape::from(workers), first, second, args))).unwrap()
    }
}

/// The calls of `models.json` with this library and these functions, or all of them.
fn calls(library: Option<&str>) -> Vec<Json> {
    let all = json("models.json").as_array().unwrap().clone();
    let calls: Vec<Json> =
        all.into_iter().filter(|call| library.is_none_or(|library| call["library"] == library)).collect();
    assert!(!calls.is_empty());
    calls
}

fn models_of_1_worker_give_numpy_s_results(plane: Plane) {
    assert_equal_to_numpy(plane, 1, 1, 10);
}

fn models_of_2_workers_give_numpy_s_results(plane: Plane) {
    assert_equal_to_numpy(plane, 2, 1, 10);
}

fn models_of_4_workers_give_numpy_s_results(plane: Plane) {
    assert_equal_to_numpy(plane, 4, 1, 10);
}

fn a_pipeline_of_2_groups_of_1_worker_gives_numpy_s_results(plane: Plane) {
    assert_equal_to_numpy(plane, 2, 2, 1);
}

fn a_pipeline_of_2_groups_of_2_workers_gives_numpy_s_results(plane: Plane) {
    assert_equal_to_numpy(plane, 4, 2, 1);
}

/// Runs the calls of `models.json` for a number of workers and groups. There are `count` calls.
fn assert_equal_to_numpy(plane: Plane, workers: usize, groups: usize, count: usize) {
    let mut running: Option<(Running, Json)> = None;
    let is_of = |call: &Json| call["workers"] == workers && call["groups"] == groups;
    let calls: Vec<Json> = calls(None).into_iter().filter(is_of).collect();
    assert_eq!(calls.len(), count);
    let all: Vec<i64> = (0..workers as i64).collect();
    for call in &calls {
        let library = &call["library"];
        let (running, _) = match running.take() {
            Some(known) if known.1 == *library => running.insert(known),
            other => {
                // MPI has one session per process.
                let session = other.map_or_else(|| plane.session(workers, groups), |(running, _)| running.session);
                running.insert((Running::new(session, library.as_str().unwrap()), library.clone()))
            }
        };
        let functions: Vec<&str> =
            call["functions"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let called = running.call(&all, &functions, &call["args"]);
        let results: Vec<Tensor> = block_on(running.session.get_all(&called)).unwrap();
        let expected = call["results"].as_array().unwrap();
        assert_eq!(results.len(), expected.len());
        for (worker, (found, expected)) in results.iter().zip(expected).enumerate() {
            assert_near(found, &tensor(expected), &format!("{library} {functions:?}, worker {worker}"));
        }
    }
}

fn assert_near(found: &Tensor, expected: &Tensor, at: &str) {
    assert_eq!(found.shape(), expected.shape(), "{at}");
    let (found, expected) = (found.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
    assert!(expected.iter().any(|x| x.abs() > 1e-2), "{at}: nothing to compare");
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-4, "{at}: {found} instead of {expected}");
    }
}

fn a_worker_that_does_not_come_ends_a_model_with_its_name_and_the_operation(plane: Plane) {
    let builder = plane.builder(2).collective_deadline(Duration::from_secs(2));
    let running = Running::new(plane.connect(builder), "mlp-2.so");
    let called = running.call(&[1], &["main"], &calls(Some("mlp-2.so"))[0]["args"]);
    let error = block_on(running.session.value(&called, WorkerId::new(1))).unwrap_err();
    let text = without_numbers(&error.to_string());
    let expected = "worker 1: test.call_with: runtime.disco.allreduce: all_reduce sum f32 x 64";
    assert!(text.starts_with(expected) && text.contains("no end after 2s") && text.contains("rank 0"), "{text}");
    assert_eq!(error.kind(), ErrorKind::Deadline { after: Duration::from_secs(2) });
    if plane == Plane::Mpi {
        // MPI can't be started again.
        return;
    }
    // The same machine computes again.
    block_on(running.session.init_ccl(plane.backend(), &[])).unwrap();
    let call = &calls(Some("mlp-2.so"))[0];
    let results: Vec<Tensor> =
        block_on(running.session.get_all(&running.call(&[0, 1], &["main"], &call["args"]))).unwrap();
    assert_near(&results[0], &tensor(&call["results"][0]), "after the failure");
}

fn models_that_reduce_differently_are_a_mismatch_that_names_the_operation(plane: Plane) {
    let builder = plane.builder(2).groups(2).collective_deadline(Duration::from_secs(5)).check(true);
    let running = Running::new(plane.connect(builder), "exchange-2.so");
    let args = &calls(Some("exchange-2.so"))[0]["args"];
    let called = running.call(&[0, 1], &["sum", "max"], args);
    let error = block_on(running.session.sync_all()).unwrap_err();
    drop(called);
    let text = without_numbers(&error.to_string());
    let operation = ": test.call_with: runtime.disco.allreduce: all_reduce";
    let differ = text.contains("all_reduce sum f32 x 64") && text.contains("all_reduce max f32 x 64");
    assert!(text.starts_with("worker ") && text.contains(operation) && differ, "{text}");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{text}");
}

fn an_argument_of_another_shape_is_the_machine_s_error(plane: Plane) {
    let running = Running::new(plane.session(1, 1), "mlp-1.so");
    let args = &calls(Some("mlp-1.so"))[0]["args"][0];
    let [x, w1, w2] = [0, 1, 2].map(|index| tensor(&args[index]));
    let called = block_on(running.session.call(&running.function("main"), (&w1, &x, &w2))).unwrap();
    let error = block_on(running.session.value(&called, WorkerId::new(0))).unwrap_err();
    let text = without_numbers(&error.to_string());
    assert!(text.starts_with("worker 0: mlp-1.so:main: RuntimeError: ") && text.contains("fn=main"), "{text}");
    let raised: &disco_ffi::Raised = error.downcast_ref().unwrap();
    assert_eq!(raised.kind, "RuntimeError");
    block_on(running.session.recover()).unwrap();
    let missing = block_on(running.model.function(&running.session, "other")).unwrap();
    let error = block_on(running.session.value(&missing, WorkerId::new(0))).unwrap_err().to_string();
    assert!(without_numbers(&error).ends_with("the module of `mlp-1.so` has no function `other`"), "{error}");
}

fn compiled_code_loads_and_binds_under_tvm_s_names(plane: Plane) {
    let running = Running::new(plane.session(2, 1), "libglobals.so");
    let call = running.function("call_global");
    let session = &running.session;
    let path = made("mlp-2.so").to_str().unwrap().to_owned();
    let machine = block_on(session.call(&call, ("runtime.disco.load_vm_module", path, None::<Device>))).unwrap();
    let model = &calls(Some("mlp-2.so"))[0];
    let main = block_on(Module::from(machine).function(session, "main")).unwrap();
    let arg = |index: usize| {
        let args: Vec<Value> =
            model["args"].as_array().unwrap().iter().map(|args| tensor(&args[index]).into()).collect();
        block_on(session.call("test.args_of_worker", (args,))).unwrap()
    };
    let called = block_on(session.call(&main, (&arg(0), &arg(1), &arg(2)))).unwrap();
    let results: Vec<Tensor> = block_on(session.get_all(&called)).unwrap();
    assert_near(&results[1], &tensor(&model["results"][1]), "by TVM's name");
    // libtvm_runtime is there now.
    let cpus = block_on(session.call("test.cpus", ())).unwrap();
    let first: Vec<i64> = block_on(session.get_all::<Shape>(&cpus)).unwrap().iter().map(|cpus| cpus[0]).collect();
    let bound = ("runtime.disco.bind_worker_to_cpu_core", Shape::from(&first[..]));
    block_on(session.call(&call, bound)).unwrap();
    let cpus = block_on(session.call("test.cpus", ())).unwrap();
    let expected: Vec<Shape> = first.iter().map(|cpu| Shape::from([*cpu])).collect();
    assert_eq!(block_on(session.get_all::<Shape>(&cpus)).unwrap(), expected);
}

fn weights_are_those_of_tvm_s_own_loader(plane: Plane) {
    let expected = json("weights.json");
    let session = plane.session(2, 1);
    let module = block_on(Module::load_vm(&session, made("shards.so"), Some(Device::CPU))).unwrap();
    let load = |folder: &str, info: Option<&str>| {
        block_on(Weights::open(&session, made(folder).join("tensor-cache.json"), info, Some(&module))).unwrap()
    };
    let check = |loaded: Result<DRef>| {
        let arrays: Vec<Vec<Value>> = block_on(session.get_all(&loaded.unwrap())).unwrap();
        for (worker, array) in arrays.into_iter().enumerate() {
            let of_worker = expected["parts"][worker].as_array().unwrap();
            assert_eq!(array.len(), of_worker.len());
            for (index, (found, expected)) in array.into_iter().zip(of_worker).enumerate() {
                let Value::Tensor(found) = found else { panic!() };
                let elements: Vec<f32> = match index {
                    4 => found.to_vec::<i8>().unwrap().into_iter().map(f32::from).collect(),
                    _ => found.to_vec().unwrap(),
                };
                // The same bits.
                assert_eq!(elements, numbers(&expected[1]), "param_{index} of worker {worker}");
                assert_eq!(found.shape(), tensor(expected).shape());
            }
        }
    };
    let whole: Weights = load("whole", expected["info"].as_str());
    check(block_on(whole.load_all(&session)));
    check(block_on(load("presharded", None).load_all_presharded(&session)));
}

fn without_libtvm_runtime_the_error_lists_what_was_tried(plane: Plane) {
    let session = plane.session(1, 1);
    let model = block_on(Module::load_vm(&session, made("mlp-1.so"), None)).unwrap();
    let error = block_on(session.value(model.handle(), WorkerId::new(0))).unwrap_err();
    let text = without_numbers(&error.to_string());
    let parts = [
        "worker 0: ffi.load_vm_module: ",
        "mlp-1.so`: ",
        "; a compiled model needs libtvm_runtime, but libtvm_runtime is not available; tried libtvm_runtime.so: ",
    ];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

fn a_library_without_relax_functions_is_opened_as_it_is(plane: Plane) {
    let session = plane.session(2, 1);
    let module = block_on(Module::load_vm(&session, made("libglobals.so"), None)).unwrap();
    let call = block_on(module.function(&session, "call_global")).unwrap();
    let rank = block_on(session.call(&call, ("runtime.disco.worker_rank",))).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&rank)).unwrap(), [0, 1]);
}

fn a_model_that_is_not_there_is_an_error_with_its_path(plane: Plane) {
    let session = plane.session(1, 1);
    let module = block_on(Module::load_vm(&session, "/nonexistent/model.so", None)).unwrap();
    let error = block_on(session.value(module.handle(), WorkerId::new(0))).unwrap_err();
    let text = without_numbers(&error.to_string());
    let expected = "worker 0: ffi.load_vm_module: can't open the library `/nonexistent/model.so`: ";
    assert!(text.starts_with(expected), "{text}");
}
