//! `runtime.disco.*`, called through libtvm_ffi by a C library, as compiled models call it.

use std::time::Duration;

use disco::error::ErrorKind;
use disco::function::{Args, BoxError, Function};
use disco::{
    Arguments, DRef, DType, Device, Error, LaneSession, Object, Result, Shape, Tensor, Value, WorkerContext, WorkerId,
    block_on, register_function,
};
use disco_ffi::Module;

use super::{Plane, made};
use crate::{library, without_numbers};

crate::models::tests![
    prepare;
    all_reduce_reduces_over_the_world_or_the_group,
    all_gather_joins_the_tensors_of_the_world_or_the_group,
    broadcast_scatter_and_gather_have_worker_0_as_their_root,
    transfers_reach_the_named_worker_and_the_neighbouring_group,
    a_worker_knows_its_id_its_world_and_its_device,
    empty_makes_tensors_on_all_workers_or_on_the_first,
    wrong_arguments_are_errors_with_the_function_and_the_argument,
    a_worker_that_does_not_come_is_named_after_the_deadline,
    tensors_of_different_shapes_are_a_mismatch_that_names_the_operation,
    a_failure_of_another_worker_aborts_a_collective,
    without_communicators_the_error_says_so,
];

fn prepare() -> bool {
    library::compiled("globals.c").is_some()
}

register_function!("test.count", count);
register_function!("test.zeros", zeros);
register_function!("test.call_on", call_on);
register_function!("test.by_worker", by_worker);
register_function!("test.end_of_all_reduce", end_of_all_reduce);

/// Elements `worker + 1`, `worker + 2`, ….
fn count(ctx: &mut WorkerContext, elements: i64) -> Result<Tensor> {
    let first = ctx.worker().index() as f32 + 1.0;
    let numbers: Vec<f32> = (0..elements).map(|at| first + at as f32).collect();
    let tensor = ctx.empty(DType::F32, [elements])?;
    tensor.write(&numbers)?;
    Ok(tensor)
}

fn zeros(ctx: &mut WorkerContext, elements: i64) -> Result<Tensor> {
    ctx.empty(DType::F32, [elements])
}

/// Calls `function(name, tensor, worker or else nothing)` on the workers of a list.
fn call_on(
    ctx: &mut WorkerContext,
    workers: Shape,
    function: Function,
    name: String,
    tensor: Tensor,
    peer: Option<i64>,
) -> Result<Object, BoxError> {
    if !workers.contains(&(ctx.worker().index() as i64)) {
        return Ok(Value::None.into());
    }
    let mut args = vec![Value::from(name).into(), Value::from(tensor).into()];
    args.extend(peer.map(|peer| Object::from(Value::Int(peer))));
    function.call(ctx, &Args::of_objects(&args))
}

/// The value of the worker's position.
fn by_worker(ctx: &mut WorkerContext, values: Vec<Value>) -> Result<Value> {
    Ok(values[ctx.worker().index()].clone())
}

/// The kind and the text of the error of a collective, for which another worker does not come because it fails.
fn end_of_all_reduce(ctx: &mut WorkerContext, function: Function, x: Tensor) -> Result<String> {
    if ctx.worker().index() > 0 {
        return Err(Error::invalid("worker 1 fails before its collective"));
    }
    let name = Value::from("runtime.disco.allreduce");
    let args = [name, (&x).into(), kind(0).into(), 0.into(), (&x).into()].map(Object::from);
    let error = function.call(ctx, &Args::of_objects(&args)).unwrap_err();
    Ok(format!("{:?}: {error}", ErrorKind::of(&*error)))
}

/// A session whose workers have the C library.
struct Workers {
    session: LaneSession,
    call: DRef,
}

impl Workers {
    /// 4 workers in 2 groups.
    fn start(plane: Plane) -> Self {
        Self::of(plane.session(4, 2))
    }

    fn of(session: LaneSession) -> Self {
        let call = block_on(async {
            Module::load(&session, made("libglobals.so")).await?.function(&session, "call_global").await
        });
        Self { session, call: call.unwrap() }
    }

    /// Calls `runtime.disco.<name>` on all workers.
    fn runtime(&self, name: &str, args: impl IntoIterator<Item = Arg>) -> Result<DRef> {
        let mut list = Arguments::default();
        list.push(format!("runtime.disco.{name}"));
        for arg in args {
            match arg {
                Arg::Handle(handle) => list.push(handle),
                Arg::Value(value) => list.push(value),
            }
        }
        block_on(self.session.call(&self.call, list))
    }

    fn tensor(&self, function: &str, elements: i64) -> DRef {
        block_on(self.session.call(function, (elements,))).unwrap()
    }

    /// The elements of each worker's tensor.
    fn elements(&self, tensor: &DRef) -> Vec<Vec<f32>> {
        let tensors: Vec<Tensor> = block_on(self.session.get_all(tensor)).unwrap();
        tensors.iter().map(|tensor| tensor.to_vec().unwrap()).collect()
    }

    fn values(&self, handle: Result<DRef>) -> Vec<Value> {
        block_on(self.session.values(&handle.unwrap())).unwrap()
    }

    /// The text of the first worker's error. The session works again afterwards.
    fn failure(&self, handle: Result<DRef>) -> String {
        let error = block_on(self.session.value(&handle.unwrap(), WorkerId::new(0))).unwrap_err();
        block_on(self.session.recover()).unwrap();
        without_numbers(&error.to_string())
    }
}

enum Arg {
    Handle(DRef),
    Value(Value),
}

impl From<&DRef> for Arg {
    fn from(handle: &DRef) -> Self {
        Self::Handle(handle.clone())
    }
}

macro_rules! args {
    ($($arg:expr),*) => { [$(Arg::from($arg)),*] };
}

impl<T: Into<Value>> From<T> for Arg
where
    T: NotAHandle,
{
    fn from(value: T) -> Self {
        Self::Value(value.into())
    }
}

trait NotAHandle {}
impl NotAHandle for i64 {}
impl NotAHandle for Shape {}
impl NotAHandle for Value {}
impl NotAHandle for DType {}
impl NotAHandle for Device {}

fn kind(number: i64) -> Shape {
    Shape::from([number])
}

fn all_reduce_reduces_over_the_world_or_the_group(plane: Plane) {
    let workers = Workers::start(plane);
    let (src, dst) = (workers.tensor("test.count", 2), workers.tensor("test.zeros", 2));
    // Over 1, 2, 3, 4 and 2, 3, 4, 5.
    let whole = [[10.0, 14.0], [24.0, 120.0], [1.0, 2.0], [4.0, 5.0], [2.5, 3.5]];
    for (number, expected) in whole.into_iter().enumerate() {
        workers.runtime("allreduce", args![&src, kind(number as i64), 0, &dst]).unwrap();
        assert_eq!(workers.elements(&dst), [expected; 4], "kind {number}");
    }
    workers.runtime("allreduce", args![&src, kind(0), 1, &dst]).unwrap();
    assert_eq!(workers.elements(&dst), [[3.0, 5.0], [3.0, 5.0], [7.0, 9.0], [7.0, 9.0]]);
    // In place.
    workers.runtime("allreduce", args![&src, kind(0), Value::Bool(false), &src]).unwrap();
    assert_eq!(workers.elements(&src), [[10.0, 14.0]; 4]);
}

fn all_gather_joins_the_tensors_of_the_world_or_the_group(plane: Plane) {
    let workers = Workers::start(plane);
    let src = workers.tensor("test.count", 1);
    let (whole, group) = (workers.tensor("test.zeros", 4), workers.tensor("test.zeros", 2));
    workers.runtime("allgather", args![&src, 0, &whole]).unwrap();
    workers.runtime("allgather", args![&src, 1, &group]).unwrap();
    assert_eq!(workers.elements(&whole), [[1.0, 2.0, 3.0, 4.0]; 4]);
    assert_eq!(workers.elements(&group), [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]);
}

fn broadcast_scatter_and_gather_have_worker_0_as_their_root(plane: Plane) {
    let workers = Workers::start(plane);
    let (src, dst) = (workers.tensor("test.count", 4), workers.tensor("test.zeros", 4));
    workers.runtime("broadcast_from_worker0", args![&src, 0, &dst]).unwrap();
    assert_eq!(workers.elements(&dst), [[1.0, 2.0, 3.0, 4.0]; 4]);
    workers.runtime("broadcast_from_worker0", args![&src, 1, &dst]).unwrap();
    assert_eq!(workers.elements(&dst)[2..], [[3.0, 4.0, 5.0, 6.0]; 2]);
    let (one, two) = (workers.tensor("test.zeros", 1), workers.tensor("test.zeros", 2));
    workers.runtime("scatter_from_worker0", args![&src, 0, &one]).unwrap();
    assert_eq!(workers.elements(&one), [[1.0], [2.0], [3.0], [4.0]]);
    workers.runtime("scatter_from_worker0", args![&src, 1, &two]).unwrap();
    assert_eq!(workers.elements(&two), [[1.0, 2.0], [3.0, 4.0], [3.0, 4.0], [5.0, 6.0]]);
    // As compiled code passes it: only worker 0 has tensors for the root.
    let only = |root: &DRef| block_on(workers.session.value(root, WorkerId::new(0))).unwrap();
    let empty = args![Shape::from([4]), DType::F32, Value::None, 1, 0];
    let root = workers.runtime("empty", empty).unwrap();
    workers.runtime("scatter_from_worker0", args![&root, 0, &one]).unwrap();
    assert_eq!(workers.elements(&one), [[0.0]; 4]);
    let src = workers.tensor("test.count", 1);
    workers.runtime("gather_to_worker0", args![&src, 0, &root]).unwrap();
    let Value::Tensor(gathered) = only(&root) else { panic!() };
    assert_eq!(gathered.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    let groups = workers.runtime("empty", args![Shape::from([2]), DType::F32, Value::None, 1, 1]).unwrap();
    workers.runtime("gather_to_worker0", args![&src, 1, &groups]).unwrap();
    let values = workers.values(Ok(groups));
    let Value::Tensor(gathered) = &values[2] else { panic!() };
    assert_eq!((gathered.to_vec::<f32>().unwrap(), &values[3]), (vec![3.0, 4.0], &Value::None));
}

fn transfers_reach_the_named_worker_and_the_neighbouring_group(plane: Plane) {
    let workers = Workers::start(plane);
    let on = |list: &[i64], name: &str, tensor: &DRef, peer: Option<i64>| {
        let name = format!("runtime.disco.{name}");
        let args = (Shape::from(list), &workers.call, name, tensor, peer);
        block_on(workers.session.call("test.call_on", args)).unwrap();
    };
    let (src, dst) = (workers.tensor("test.count", 1), workers.tensor("test.zeros", 1));
    on(&[1], "send_to_worker", &src, Some(3));
    on(&[3], "recv_from_worker", &dst, Some(1));
    assert_eq!(workers.elements(&dst), [[0.0], [0.0], [0.0], [2.0]]);
    on(&[0], "send_to_worker", &src, Some(2));
    on(&[2], "recv_from_worker0", &dst, None);
    assert_eq!(workers.elements(&dst), [[0.0], [0.0], [1.0], [2.0]]);
    on(&[0, 1], "send_to_next_group", &src, None);
    on(&[2, 3], "recv_from_prev_group", &src, None);
    assert_eq!(workers.elements(&src), [[1.0], [2.0], [1.0], [2.0]]);
}

fn a_worker_knows_its_id_its_world_and_its_device(plane: Plane) {
    let workers = Workers::start(plane);
    let ids: Vec<Value> = (0..4).map(|id| Value::Shape(Shape::from([id]))).collect();
    assert_eq!(workers.values(workers.runtime("worker_id", [])), ids);
    assert_eq!(workers.values(workers.runtime("worker_rank", [])), [0, 1, 2, 3].map(Value::Int));
    assert_eq!(workers.values(workers.runtime("world_size", [])), [4; 4].map(Value::Int));
    assert_eq!(workers.values(workers.runtime("device", [])), [Device::CPU; 4].map(Value::Device));
}

fn empty_makes_tensors_on_all_workers_or_on_the_first(plane: Plane) {
    let workers = Workers::start(plane);
    let have = |device: Value, first: i64, in_group: i64| {
        let args = args![Shape::from([2, 3]), DType::F16, device, first, in_group];
        let values = workers.values(workers.runtime("empty", args));
        let is_right = |tensor: &Tensor| tensor.dtype() == DType::F16 && tensor.dims() == [2, 3];
        let has = |value| matches!(value, Value::Tensor(tensor) if is_right(&tensor));
        values.into_iter().map(has).collect::<Vec<_>>()
    };
    assert_eq!(have(Value::None, 0, 0), [true; 4]);
    assert_eq!(have(Value::Device(Device::CPU), 1, 0), [true, false, false, false]);
    assert_eq!(have(Value::None, 1, 1), [true, false, true, false]);
}

fn wrong_arguments_are_errors_with_the_function_and_the_argument(plane: Plane) {
    let workers = Workers::start(plane);
    let (x, cuda) = (workers.tensor("test.count", 1), Device::new(disco::DeviceKind::Cuda, 1));
    let shape = || Shape::from([1]);
    let cases: [(&str, Vec<Arg>, &str); 7] = [
        ("allreduce", args![&x, kind(0), 0].into(), "expected 4 arguments, got 3"),
        ("allreduce", args![&x, kind(5), 0, &x].into(), "there is no reduction 5: TVM has 0 to 4"),
        ("allreduce", args![&x, shape(), 2, &x].into(), "argument 2: expected a bool, got an int"),
        (
            "allreduce",
            args![&x, Shape::from([1, 2]), 0, &x].into(),
            "argument 1: expected an int, or a shape of one int, got the shape [1, 2]",
        ),
        ("allgather", args![Value::Int(1), 0, &x].into(), "argument 0: expected a tensor, got an int"),
        ("send_to_worker", args![&x, -1].into(), "argument 1: expected the id of a worker, got -1"),
        ("empty", args![shape(), DType::F32, cuda, 0, 0].into(), "a tensor on cuda:1, but this worker's device is cpu"),
    ];
    for (name, args, text) in cases {
        let failure = workers.failure(workers.runtime(name, args));
        let expected = format!("worker 0: libglobals.so:call_global: runtime.disco.{name}: {text}");
        assert!(failure.starts_with(&expected), "{failure}");
    }
}

fn a_worker_that_does_not_come_is_named_after_the_deadline(plane: Plane) {
    let builder = plane.builder(2).collective_deadline(Duration::from_secs(2));
    let workers = Workers::of(plane.connect(builder));
    let x = workers.tensor("test.count", 1);
    let name = "runtime.disco.recv_from_worker0";
    let args = (Shape::from([1]), &workers.call, name, &x, None::<i64>);
    let called = block_on(workers.session.call("test.call_on", args)).unwrap();
    let error = block_on(workers.session.value(&called, WorkerId::new(1))).unwrap_err();
    let text = without_numbers(&error.to_string());
    let expected = "worker 1: test.call_on: runtime.disco.recv_from_worker0: recv f32 x 1";
    assert!(text.starts_with(expected) && text.contains("no end after 2s") && text.contains("rank 0"), "{text}");
    assert_eq!(error.kind(), ErrorKind::Deadline { after: Duration::from_secs(2) });
}

fn tensors_of_different_shapes_are_a_mismatch_that_names_the_operation(plane: Plane) {
    let builder = plane.builder(2).collective_deadline(Duration::from_secs(5)).check(true);
    let workers = Workers::of(plane.connect(builder));
    let sizes = [Value::Int(1), Value::Int(2)].to_vec();
    let sizes = block_on(workers.session.call("test.by_worker", (sizes,))).unwrap();
    let x = block_on(workers.session.call("test.count", (&sizes,))).unwrap();
    let called = workers.runtime("allreduce", args![&x, kind(0), 0, &x]).unwrap();
    let error = block_on(workers.session.sync_all()).unwrap_err();
    let text = without_numbers(&error.to_string());
    drop(called);
    let operation = ": libglobals.so:call_global: runtime.disco.allreduce: all_reduce";
    assert!(text.starts_with("worker ") && text.contains(operation) && text.contains("ranks disagree"), "{text}");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{text}");
}

fn a_failure_of_another_worker_aborts_a_collective(plane: Plane) {
    let workers = Workers::of(plane.session(2, 1));
    let x = workers.tensor("test.count", 1);
    let ended = block_on(workers.session.call("test.end_of_all_reduce", (&workers.call, &x))).unwrap();
    let ended: String = block_on(workers.session.get(&ended, WorkerId::new(0))).unwrap();
    // The abort may come before worker 0 waits, or while it does.
    let starts = [
        "Broken: runtime.disco.allreduce: all_reduce sum f32 x 1: the communicator is broken since: worker 1: ",
        "Aborted: runtime.disco.allreduce: aborted, because worker 1: ",
    ];
    assert!(starts.iter().any(|start| ended.starts_with(start)), "{ended}");
    assert!(ended.ends_with("worker 1 fails before its collective"), "{ended}");
}

fn without_communicators_the_error_says_so(plane: Plane) {
    let workers = Workers::of(plane.builder(2).start().unwrap());
    let x = workers.tensor("test.count", 1);
    let called = workers.runtime("allreduce", args![&x, kind(0), 0, &x]).unwrap();
    let error = block_on(workers.session.value(&called, WorkerId::new(0))).unwrap_err();
    let expected = "worker 0: libglobals.so:call_global: runtime.disco.allreduce: no communicator on this worker: call `init_ccl` first";
    assert!(without_numbers(&error.to_string()).starts_with(expected), "{error}");
    assert_eq!(error.kind(), ErrorKind::NoCommunicator);
}
