//! The cost of a call of a library's function on a worker, beside the bare C call and a Rust worker function.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common;
use criterion::{Criterion, criterion_group};
use disco::function::{Args, BoxError, Function};
use disco::{Builder, DRef, DType, LaneSession, Object, Tensor, Value, WorkerContext, WorkerId, block_on};
use disco_ffi::abi::{self, SafeCall, TypeIndex};
use disco_ffi::{Module, TvmFfi};

/// Calls of one measurement.
const CALLS: u32 = 20_000;
/// Measurements of a difference.
const ROUNDS: usize = 15;

const SOURCE: &str = r#"
#include <stdint.h>
typedef struct { int32_t type; uint32_t len; union { int64_t i; double f; char *p; }; } Any;

int __tvm_ffi_take_4(void *self, const Any *args, int32_t count, Any *result) {
  result->type = 1;
  result->i = args[0].i + (int64_t)args[1].f + args[2].len + args[3].i;
  return 0;
}

/* The number of axes of a tensor object. */
int __tvm_ffi_take_tensor(void *self, const Any *args, int32_t count, Any *result) {
  result->type = 1;
  result->i = *(int32_t *)(args[0].p + 24 + 16);
  return 0;
}
"#;

disco::register_function!("benches.repeat", repeat);
disco::register_function!("benches.take_4", take_4);
disco::register_function!("benches.take_tensor", take_tensor);

/// Calls a function with the other arguments and returns the seconds of one call.
fn repeat(ctx: &mut WorkerContext, function: Function, args: Vec<Value>) -> Result<f64, BoxError> {
    let objects: Vec<Object> = args.into_iter().map(Object::Value).collect();
    let start = Instant::now();
    for _ in 0..CALLS {
        black_box(function.call(ctx, &Args::of_objects(black_box(&objects)))?);
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(CALLS))
}

fn take_4(_: &mut WorkerContext, int: i64, float: f64, text: Arc<str>, other: i64) -> disco::Result<i64> {
    Ok(int + float as i64 + text.len() as i64 + other)
}

fn take_tensor(_: &mut WorkerContext, tensor: Tensor) -> disco::Result<i64> {
    Ok(tensor.shape().len() as i64)
}

/// The library, compiled now; none, with a line on standard output, if there is no C compiler.
fn library() -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (source, library) = (folder.path().join("calls.c"), folder.path().join("libcalls.so"));
    fs::write(&source, SOURCE).expect("there is room");
    match Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).args([&library, &source]).status() {
        Ok(status) => assert!(status.success(), "the source compiles"),
        Err(error) => {
            println!("ffi: skipped: no C compiler: {error}");
            return None;
        }
    }
    Some((folder, library))
}

/// The time of a bare call of the entry `symbol` with `args`.
fn bare(library: &disco_dl::Library, symbol: &std::ffi::CStr, args: &[abi::Any]) -> Duration {
    // SAFETY: the symbols of the library are entries of this type.
    let entry: SafeCall = unsafe { library.function(symbol) }.expect("the library exports it");
    let start = Instant::now();
    for _ in 0..CALLS {
        let mut result = abi::Any::NONE;
        let data = black_box(args).as_ptr();
        // SAFETY: the arguments are valid for the entry.
        unsafe { entry(ptr::null_mut::<c_void>(), data, args.len() as c_int, &mut result) };
        black_box(&result);
    }
    start.elapsed() / CALLS
}

/// The time of a call on the worker.
fn on_worker(session: &LaneSession, function: &DRef, args: &Value) -> Duration {
    let time = block_on(async {
        let time = session.call("benches.repeat", (function, args.clone())).await?;
        session.get::<f64>(&time, WorkerId::new(0)).await
    });
    Duration::from_secs_f64(time.expect("the worker lives"))
}

/// Compares the calls of one function. `way` says how the library was opened.
fn compare(session: &LaneSession, module: &Module, way: &str, library: &disco_dl::Library, case: &Case<'_>) {
    let (name, args) = (case.name, Value::from(case.args.clone()));
    let (ours, rust) = block_on(async {
        let ours = module.function(session, name).await?;
        let rust = session.function(&format!("benches.{name}")).await?;
        Ok::<_, disco::Error>((ours, rust))
    })
    .expect("both have it");
    let check = |function: &DRef| {
        let args = case.args.iter().fold(disco::Arguments::default(), |mut args, arg| {
            args.push(arg.clone());
            args
        });
        let result = block_on(async { session.value(&session.call(function, args).await?, WorkerId::new(0)).await });
        assert_eq!(result.expect("the worker lives"), Value::Int(case.result));
    };
    check(&ours);
    check(&rust);
    let mut floor = || bare(library, case.symbol, case.raw);
    let mut worker_function = || on_worker(session, &rust, &args);
    let ours = || on_worker(session, &ours, &args);
    let title = format!("ffi/{name}{way}");
    if common::is_selected(&title) {
        let mut more: Vec<_> = (0..ROUNDS).map(|_| nanos(ours()) - nanos(worker_function())).collect();
        more.sort_unstable_by(f64::total_cmp);
        println!("{title}: {:.0} ns more than a Rust worker function", more[ROUNDS / 2]);
    }
    common::compare(&format!("{title}, beside C"), ours, &mut [("bare C call", &mut floor)]);
    common::compare(&format!("{title}, beside Rust"), ours, &mut [("worker function", &mut worker_function)]);
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// A function that the library and Rust have, with equal arguments.
struct Case<'a> {
    name: &'static str,
    symbol: &'static std::ffi::CStr,
    args: Vec<Value>,
    raw: &'a [abi::Any],
    result: i64,
}

fn ffi(criterion: &mut Criterion) {
    let Some((_folder, file)) = library() else { return };
    let session = Builder::threads(1).start().expect("workers can be started");
    let module = block_on(disco_ffi::Module::load(&session, &file)).expect("the worker lives");
    let library = disco_dl::Library::open(&disco_dl::Candidate::file(&file)).expect("it is a library");
    let small =
        abi::Any { type_index: TypeIndex::SMALL_STR, small_len: 5, content: u64::from_le_bytes(*b"three\0\0\0") };
    let int = |int: u64| abi::Any::new(TypeIndex::INT, int);
    let float = abi::Any::new(TypeIndex::FLOAT, 2f64.to_bits());
    // The memory that the C function reads: a header, an address, a device, and the number of axes.
    let tensor_object = [0u64, 0, 0, 0, 0, 2];
    let numbers = Case {
        name: "take_4",
        symbol: c"__tvm_ffi_take_4",
        args: vec![1.into(), 2.0.into(), "three".into(), 4.into()],
        raw: &[int(1), float, small, int(4)],
        result: 12,
    };
    let tensor = Case {
        name: "take_tensor",
        symbol: c"__tvm_ffi_take_tensor",
        args: vec![Tensor::zeros(DType::F32, [1024, 1024]).expect("there is room").into()],
        raw: &[abi::Any::of_pointer(TypeIndex::TENSOR, tensor_object.as_ptr())],
        result: 2,
    };
    let function = block_on(module.function(&session, "take_4")).expect("the worker lives");
    let mut group = criterion.benchmark_group("ffi");
    group.bench_function("take_4, through the session", |bencher| {
        bencher.iter(|| {
            let result = block_on(session.call(&function, (1, 2.0, "three", 4)));
            drop(result.expect("the worker lives"));
        });
    });
    group.finish();
    for case in [&numbers, &tensor] {
        compare(&session, &module, "", &library, case);
    }
    // From now on, libraries are opened through libtvm_ffi.
    if let Err(absent) = TvmFfi::get() {
        return println!("ffi, through libtvm_ffi: skipped: {absent}");
    }
    let copy = file.with_file_name("libcopy.so");
    fs::copy(&file, &copy).expect("there is room");
    let module = block_on(disco_ffi::Module::load(&session, copy)).expect("the worker lives");
    for case in [&numbers, &tensor] {
        compare(&session, &module, ", through libtvm_ffi", &library, case);
    }
}

criterion_group!(benches, ffi);

pub(crate) fn main() {
    common::run(benches);
}
