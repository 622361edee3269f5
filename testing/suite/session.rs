//! Sessions over threads: calls, values, worker-0 copies, groups, and the data plane from the controller.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use disco::wire::{Reader, WireError, Writer};
use disco::{
    Builder, DRef, DType, LaneSession, Opaque, Placement, RegisterId, Result, Tensor, Value, WireObject, WorkerContext,
    WorkerId, block_on, function::Function,
};

/// An object type of this program.
#[derive(Debug, PartialEq)]
struct Interval(f64, f64);

impl WireObject for Interval {
    fn type_index(&self) -> i32 {
        9000
    }
    fn size(&self) -> usize {
        16
    }
    fn write(&self, to: &mut Writer) {
        to.f64(self.0);
        to.f64(self.1);
    }
}

fn read_interval(from: &mut Reader<'_>) -> Result<Value, WireError> {
    Ok(Value::Object(Arc::new(Interval(from.f64()?, from.f64()?))))
}

disco::register_object!(9000, read_interval);

/// A Rust value that never leaves its worker.
struct Counter(std::cell::Cell<i64>);

fn whoami(ctx: &mut WorkerContext) -> Result<i64> {
    Ok(ctx.worker().wire())
}

fn echo(_: &mut WorkerContext, value: Value) -> Result<Value> {
    Ok(value)
}

fn describe(_: &mut WorkerContext, n: i64, x: f64, name: String, flag: Option<bool>) -> Result<String> {
    Ok(format!("{n} {x} {name} {flag:?}"))
}

fn counter(_: &mut WorkerContext, start: i64) -> Result<Opaque> {
    Ok(Opaque::new(Counter(start.into())))
}

fn count(_: &mut WorkerContext, counter: Rc<Counter>) -> Result<i64> {
    counter.0.set(counter.0.get() + 1);
    Ok(counter.0.get())
}

fn apply(ctx: &mut WorkerContext, function: Function) -> Result<i64> {
    Ok(ctx.worker().wire() * 100 + i64::from(function.name() == "tests.whoami"))
}

fn interval_length(_: &mut WorkerContext, value: Value) -> Result<f64> {
    let Value::Object(object) = value else { return Err(disco::Error::Invalid("no object".into())) };
    let any: &dyn std::any::Any = &*object;
    let interval = any.downcast_ref::<Interval>();
    let interval = interval.ok_or_else(|| disco::Error::Invalid("no interval".into()))?;
    Ok(interval.1 - interval.0)
}

/// Returns `[10 w, 10 w + 1, …]` on worker `w`.
fn numbers(ctx: &mut WorkerContext, len: i64) -> Result<Tensor> {
    let tensor = ctx.empty(DType::I64, [len])?;
    let first = 10 * ctx.worker().wire();
    tensor.view_mut::<i64>()?.iter_mut().zip(first..).for_each(|(x, n)| *x = n);
    Ok(tensor)
}

disco::register_function!("tests.whoami", whoami);
disco::register_function!("tests.echo", echo);
disco::register_function!("tests.describe", describe);
disco::register_function!("tests.counter", counter);
disco::register_function!("tests.count", count);
disco::register_function!("tests.apply", apply);
disco::register_function!("tests.interval_length", interval_length);
disco::register_function!("tests.numbers", numbers);

fn worker(index: u32) -> WorkerId {
    WorkerId::new(index)
}

/// Runs `test` with a session of `workers` workers in `groups` groups, with communicators.
fn plane(workers: usize, groups: usize, test: impl AsyncFnOnce(&LaneSession) -> Result<()>) {
    let session = Builder::threads(workers).groups(groups).start().unwrap();
    block_on(async {
        session.init_ccl("local", &[]).await.unwrap();
        test(&session).await.unwrap();
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
}

async fn made(session: &LaneSession, name: &str, arg: i64) -> Result<DRef> {
    session.call(name, (arg,)).await
}

/// The integers of the tensor on each worker.
async fn all(session: &LaneSession, handle: &DRef) -> Result<Vec<Vec<i64>>> {
    let mut all = Vec::new();
    for worker in session.world().workers() {
        all.push(session.get::<Tensor>(handle, worker).await?.to_vec()?);
    }
    Ok(all)
}

#[test]
fn arguments_are_typed_and_variadic() {
    plane(1, 1, async |session| {
        let describe = session.function("tests.describe").await?;
        let text = session.call(&describe, (7, 2, "x", true)).await?;
        assert_eq!(session.get::<String>(&text, worker(0)).await?, "7 2 x Some(true)");
        let text = session.call(&describe, (7, 2.5, "x", None::<bool>)).await?;
        assert_eq!(session.get::<String>(&text, worker(0)).await?, "7 2.5 x None");
        let length = session.function("tests.interval_length").await?;
        let object: Arc<dyn WireObject> = Arc::new(Interval(1.0, 3.5));
        let length = session.call(&length, (Value::Object(object),)).await?;
        assert_eq!(session.get::<f64>(&length, worker(0)).await?, 2.5);
        Ok(())
    });
}

#[test]
fn opaque_values_and_functions_stay_in_the_registers_of_their_worker() {
    plane(2, 1, async |session| {
        let counter = made(session, "tests.counter", 5).await?;
        let count = session.function("tests.count").await?;
        session.call(&count, (&counter,)).await?;
        let counted = session.call(&count, (&counter,)).await?;
        assert_eq!(session.get::<i64>(&counted, worker(1)).await?, 7);
        let error = session.value(&counter, worker(1)).await.unwrap_err().to_string();
        assert!(error.contains("Counter can't leave its worker"), "{error}");

        let whoami = session.function("tests.whoami").await?;
        let applied = session.call("tests.apply", (&whoami,)).await?;
        assert_eq!(session.get::<i64>(&applied, worker(1)).await?, 101);
        Ok(())
    });
}

#[test]
fn freed_registers_are_reused() {
    plane(2, 1, async |session| {
        let whoami = session.function("tests.whoami").await?;
        let mut highest = RegisterId::new(0);
        for _ in 0..10_000 {
            highest = highest.max(session.call(&whoami, ()).await?.register());
        }
        assert!(highest.index() < 10, "{highest}");
        Ok(())
    });
}

#[test]
fn set_of_a_tensor_with_another_shape_or_dtype_is_an_error_and_the_register_keeps_its_elements() {
    for wrong in [Tensor::zeros(DType::I64, [1, 2]).unwrap(), Tensor::zeros(DType::U64, [2]).unwrap()] {
        plane(2, 1, async |session| {
            let x = made(session, "tests.numbers", 2).await?;
            let error = session.set(&x, worker(1), wrong.clone().into()).await.unwrap_err().to_string();
            let reason =
                format!("{wrong} does not fit into the worker's tensor i64[2] on cpu; dtype and shape must be equal");
            assert!(error.starts_with("worker 1: set (command ") && error.ends_with(&reason), "{error}");
            session.recover().await?;
            assert_eq!(all(session, &x).await?, [[0, 1], [10, 11]]);
            Ok(())
        });
    }
}

#[test]
fn copies_to_and_from_worker_0_pass_arrays_by_reference() {
    plane(3, 1, async |session| {
        let x = session.empty(DType::I64, [3], Placement::All).await?;
        session.copy_to_worker_0(&Tensor::from_slice(&[1i64, 2, 3], [3])?, &x).await?;
        let back = Tensor::zeros(DType::I64, [3])?;
        session.copy_from_worker_0(&back, &x).await?;
        session.sync_worker(WorkerId::new(0)).await?;
        assert_eq!(back.to_vec::<i64>()?, [1, 2, 3]);
        assert_eq!(all(session, &x).await?, [[1, 2, 3], [0, 0, 0], [0, 0, 0]]);
        let storage = Arc::downgrade(back.storage());
        drop(back);
        assert!(storage.upgrade().is_none(), "the session dropped the array");
        Ok(())
    });
}

#[test]
fn only_group_roots_have_a_tensor_that_is_placed_on_them() {
    plane(4, 2, async |session| {
        let roots = session.empty(DType::I64, [2], Placement::GroupRoots).await?;
        let is_there = session.values(&roots).await?.into_iter().map(|value| value != Value::None);
        assert!(is_there.eq([true, false, true, false]));
        Ok(())
    });
}

#[test]
fn tensors_are_sent_between_groups_and_between_workers() {
    plane(6, 3, async |session| {
        let x = made(session, "tests.numbers", 1).await?;
        let y = session.empty(DType::I64, [1], Placement::All).await?;
        session.send_to_next_group(&x, &y).await?;
        assert_eq!(all(session, &y).await?, [[0], [0], [0], [10], [20], [30]]);
        session.send_to_worker(&x, &y, worker(5), worker(0)).await?;
        assert_eq!(all(session, &y).await?, [[50], [0], [0], [10], [20], [30]]);
        let error = session.send_to_worker(&x, &y, worker(1), worker(1)).await.unwrap_err();
        assert_eq!(error.to_string(), "send_to_worker: worker 1 can't send to itself");
        Ok(())
    });
}

/// The session of the test that follows.
static OWN: OnceLock<LaneSession> = OnceLock::new();

/// Worker function: the error of a method that waits for the worker itself.
fn wait_for_oneself(ctx: &mut WorkerContext) -> Result<String> {
    let Some(session) = OWN.get().filter(|_| ctx.worker().index() == 1) else { return Ok(String::new()) };
    let errors = [
        block_on(session.sync_all()).err(),
        block_on(session.init_ccl("local", &[])).err(),
        block_on(session.resize(3)).err(),
    ];
    Ok(errors.map(|error| error.map_or("none".to_owned(), |error| error.to_string())).join("\n"))
}

disco::register_function!("tests.wait_for_oneself", wait_for_oneself);

#[test]
fn a_worker_that_waits_for_itself_gets_an_error() {
    let session = OWN.get_or_init(|| Builder::threads(2).start().unwrap());
    let errors = block_on(session.call("tests.wait_for_oneself", ())).unwrap();
    let errors: String = block_on(session.get(&errors, WorkerId::new(1))).unwrap();
    let why = "worker 1 of this session would wait for itself: its functions can't call methods that wait for it";
    assert_eq!(errors, ["sync_all", "sync_all", "resize"].map(|method| format!("{method}: {why}")).join("\n"));
    block_on(session.shutdown()).unwrap();
}
