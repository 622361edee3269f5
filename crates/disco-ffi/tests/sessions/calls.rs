//! Calls of functions, and calls back.

use disco::{SessionKind, Value, WorkerContext, WorkerId, block_on};
use disco_core::function::{Args, BoxError, Function};
use disco_core::{Error, Object, Tensor};
use disco_ffi::{Module, Raised};

use super::{call, failure, load, loaded, session, submit};
use crate::library::library;
use crate::without_numbers;

crate::sessions::tests![
    a_function_of_a_library_is_called_on_all_workers,
    results_of_calls_are_arguments_of_later_calls,
    a_library_calls_a_worker_function_with_the_context_of_its_worker,
    an_error_of_a_worker_function_passes_through_a_library,
    a_panic_of_a_worker_function_passes_through_a_library_as_an_error,
    a_raised_error_has_its_kind_its_text_and_the_worker in With,
    an_error_poisons_the_results_that_depend_on_it in With,
    a_global_function_is_called_by_its_name in With,
    a_library_that_needs_libtvm_ffi_opens_it in WhenNeeded,
    a_library_that_is_linked_to_libtvm_ffi_raises_errors in WhenNeeded,
    a_compiled_library_gets_its_module in WhenNeeded,
    a_library_passes_pointers_as_arguments,
    a_lent_tensor_is_used_and_not_returned,
    a_lent_tensor_that_is_kept_ends_the_process of Processes,
    a_worker_function_is_not_called_on_another_thread of Processes,
    a_registered_function_is_called_with_the_context_of_the_calling_worker in With,
    a_call_inside_of_a_call_gets_the_context_back,
];

disco_core::register_function!("ffi_tests.whoami", whoami);
disco_core::register_function!("ffi_tests.functions", functions);

fn whoami(ctx: &mut WorkerContext) -> disco::Result<i64> {
    Ok(ctx.worker().wire())
}

/// A worker function by name, as a value that can be an argument.
fn functions(_: &mut WorkerContext, name: String) -> disco::Result<Function> {
    Ok(match name.as_str() {
        "worker" => Function::new("worker", |ctx: &mut WorkerContext, args: &Args<'_>| {
            Ok(Object::Value(Value::Int(10 * ctx.worker().wire() + args.take::<i64>(0)?)))
        }),
        "fails" => Function::new("fails", |_: &mut WorkerContext, _: &Args<'_>| -> Result<Object, BoxError> {
            Err(Error::NoCommunicator.into())
        }),
        "sum" => Function::new("sum", |_: &mut WorkerContext, args: &Args<'_>| {
            let sum: f32 = args.take::<Tensor>(0)?.view::<f32>()?.iter().sum();
            Ok(Object::Value(sum.into()))
        }),
        "returns" => Function::new("returns", |_: &mut WorkerContext, args: &Args<'_>| {
            Ok(Object::Value(vec![Value::from(args.take::<Tensor>(0)?)].into()))
        }),
        "keeps" => Function::new("keeps", |_: &mut WorkerContext, args: &Args<'_>| {
            std::mem::forget(args.take::<Tensor>(0)?);
            Ok(Object::Value(Value::None))
        }),
        "list" => Function::new("list", |_: &mut WorkerContext, args: &Args<'_>| {
            let args: Vec<_> = (0..args.len()).map(|index| args.take::<Value>(index)).collect::<Result<_, _>>()?;
            Ok(Object::Value(args.into()))
        }),
        "nested" => Function::new("nested", |_: &mut WorkerContext, _: &Args<'_>| {
            // Not the context of the call, which the library holds, but that of the worker.
            let worker = disco_ffi::current::with(|ctx| ctx.worker().wire());
            Ok(Object::Value(worker.map_or(Value::None, Value::Int)))
        }),
        _ => Function::new("panics", |_: &mut WorkerContext, _: &Args<'_>| panic!("on purpose")),
    })
}

fn a_function_of_a_library_is_called_on_all_workers(kind: SessionKind) {
    let library = library!("plain.c");
    let session = session(kind);
    let sum = submit(&session, &load(&session, library), "add4", (1, 2, 3, 4)).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&sum)).unwrap(), [10, 10]);
}

fn results_of_calls_are_arguments_of_later_calls(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let sum = submit(&session, &module, "add4", (1, 2)).unwrap();
    let worker = block_on(session.call("ffi_tests.whoami", ())).unwrap();
    assert_eq!(call(&session, &module, "add4", (&sum, &worker, 100)).unwrap(), Value::Int(104));
}

fn a_library_calls_a_worker_function_with_the_context_of_its_worker(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let function = block_on(session.call("ffi_tests.functions", ("worker",))).unwrap();
    assert_eq!(call(&session, &module, "apply", (&function, 7)).unwrap(), Value::Int(17));
    // A function of the library as an argument of itself.
    let apply = block_on(module.function(&session, "apply")).unwrap();
    let nested = block_on(session.call(&apply, (&apply, &function, 5))).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&nested)).unwrap(), [5, 15]);
}

fn an_error_of_a_worker_function_passes_through_a_library(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let function = block_on(session.call("ffi_tests.functions", ("fails",))).unwrap();
    let error = call(&session, &module, "apply", (&function,)).unwrap_err();
    let text = "worker 1: libplain.so:apply: no communicator on this worker: call `init_ccl` first";
    assert_eq!(without_numbers(&error.to_string()), text);
    assert_eq!(error.kind(), disco::error::ErrorKind::NoCommunicator);
}

fn a_panic_of_a_worker_function_passes_through_a_library_as_an_error(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let function = block_on(session.call("ffi_tests.functions", ("panics",))).unwrap();
    let text = failure(&session, &module, "apply", (&function,));
    assert_eq!(without_numbers(&text), "worker 1: libplain.so:apply: panicked: on purpose");
}

fn a_raised_error_has_its_kind_its_text_and_the_worker(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("raises.c"));
    assert_eq!(call(&session, &module, "add1", (41,)).unwrap(), Value::Int(42));
    let error = call(&session, &module, "raises", ()).unwrap_err();
    let text = "worker 1: libraises.so:raises: ValueError: the number is too small";
    assert_eq!(without_numbers(&error.to_string()), text);
    let raised = error.downcast_ref::<Raised>().unwrap();
    assert_eq!((&*raised.kind, &*raised.message), ("ValueError", "the number is too small"));
}

fn an_error_poisons_the_results_that_depend_on_it(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("raises.c"));
    let add1 = block_on(module.function(&session, "add1")).unwrap();
    let raised = submit(&session, &module, "raises", ()).unwrap();
    // The call may be refused already, since the failure of the earlier one is known.
    let text = match block_on(session.call(&add1, (&raised,))) {
        Ok(sum) => block_on(session.value(&sum, WorkerId::new(0))).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("libraises.so:raises") && text.contains("the number is too small"), "{text}");
    block_on(session.recover()).unwrap();
    let sum = block_on(session.call(&add1, (1,))).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&sum)).unwrap(), [2, 2]);
}

fn a_global_function_is_called_by_its_name(kind: SessionKind) {
    assert!(disco_conformance::libtvm_ffi().is_some());
    let session = session(kind);
    let array =
        block_on(async { session.call(&Module::global_function(&session, "ffi.Array").await?, (1, "two")).await });
    let array = block_on(session.value(&array.unwrap(), WorkerId::new(1))).unwrap();
    assert_eq!(array, Value::from(vec![Value::Int(1), Value::from("two")]));
    let absent = block_on(async {
        session.sync_all().await?;
        Module::global_function(&session, "no.such").await
    });
    let text = block_on(async { session.value(&absent?, WorkerId::new(1)).await }).unwrap_err().to_string();
    assert!(text.ends_with("libtvm_ffi has no global function `no.such`"), "{text}");
}

/// The function of this name on all workers.
fn function(session: &disco::LaneSession, name: &str) -> disco::DRef {
    block_on(session.call("ffi_tests.functions", (name,))).unwrap()
}

fn a_library_passes_pointers_as_arguments(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let moved = Value::from(vec![Value::Int(1)]);
    let values = call(&session, &module, "passes_pointers", (&function(&session, "list"), moved.clone())).unwrap();
    assert_eq!(values, Value::from(vec![Value::from("text"), Value::from(vec![1u8, 2]), moved]));
}

fn a_lent_tensor_is_used_and_not_returned(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    assert_eq!(call(&session, &module, "lends", (&function(&session, "sum"),)).unwrap(), Value::Float(6.0));
    let text = failure(&session, &module, "lends", (&function(&session, "returns"),));
    assert_eq!(
        without_numbers(&text),
        "worker 1: libplain.so:lends: the function returned a tensor that its caller only lends; return a copy, or pass an \
         owned tensor"
    );
}

fn a_lent_tensor_that_is_kept_ends_the_process(kind: SessionKind) {
    let library = library!("plain.c");
    let text = super::bad::lost(kind, &library, "lends", |session| vec![function(session, "keeps")]);
    assert!(text.contains("worker 1") && text.contains("signal: 6 (SIGABRT)"), "{text}");
}

fn a_worker_function_is_not_called_on_another_thread(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let text = failure(&session, &module, "calls_on_a_thread", (&function(&session, "sum"),));
    // libtvm_ffi keeps raised errors by thread, so the error of the other thread does not arrive.
    let start = "worker 1: libplain.so:calls_on_a_thread: ";
    let ends = [
        "sum: a library called this worker function outside of a call of its worker",
        "RuntimeError: the function failed and raised no error",
    ];
    let text = without_numbers(&text);
    assert!(text.starts_with(start) && ends.iter().any(|end| text.ends_with(end)), "{text}");
}

fn twice(ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    Ok(Object::Value(Value::Int(2 * args.take::<i64>(0)? + 100 * ctx.worker().wire())))
}

fn register(_: &mut WorkerContext) -> disco::Result<()> {
    disco_ffi::register_global("ffi_tests.twice", twice)
}

disco_core::register_function!("ffi_tests.register", register);

fn a_registered_function_is_called_with_the_context_of_the_calling_worker(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    block_on(session.call("ffi_tests.register", ())).unwrap();
    block_on(session.sync_all()).unwrap();
    let twice = block_on(Module::global_function(&session, "ffi_tests.twice")).unwrap();
    assert_eq!(call(&session, &module, "apply", (&twice, 21)).unwrap(), Value::Int(142));
    let text = failure(&session, &module, "apply", (&twice, "x"));
    assert_eq!(without_numbers(&text), "worker 1: libplain.so:apply: argument 0: expected an int, got a string");
}

fn a_call_inside_of_a_call_gets_the_context_back(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    // The callback has the context, so the library's call has none to give.
    assert_eq!(call(&session, &module, "apply", (&function(&session, "nested"),)).unwrap(), Value::None);
    assert_eq!(call(&session, &module, "apply", (&function(&session, "worker"), 1)).unwrap(), Value::Int(11));
}

fn a_library_that_needs_libtvm_ffi_opens_it(kind: SessionKind) {
    let (plain, raises) = (library!("plain.c"), library!("raises.c"));
    let session = session(kind);
    let plain = load(&session, plain);
    assert_eq!(call(&session, &plain, "add4", (1, 2)).unwrap(), Value::Int(3));
    let text = failure(&session, &load(&session, raises), "raises", ());
    assert_eq!(without_numbers(&text), "worker 1: libraises.so:raises: ValueError: the number is too small");
    assert_eq!(call(&session, &plain, "add4", (1, 2)).unwrap(), Value::Int(3), "it was opened before libtvm_ffi");
}

fn a_library_that_is_linked_to_libtvm_ffi_raises_errors(kind: SessionKind) {
    let Some(tvm) = disco_conformance::libtvm_ffi() else { return };
    let Some(library) = crate::library::linked(&tvm) else { return };
    let session = session(kind);
    let text = failure(&session, &load(&session, library), "raises", ());
    assert_eq!(without_numbers(&text), "worker 1: liblinked.so:raises: ValueError: the number is too small");
}

fn a_compiled_library_gets_its_module(kind: SessionKind) {
    let library = library!("compiled.c");
    let session = session(kind);
    // Thread workers share one module, which stays in the library as long as one of them uses it.
    let (first, second) = (load(&session, &library), load(&session, &library));
    assert_eq!(call(&session, &first, "module", ()).unwrap(), Value::Int(73));
    drop(first);
    block_on(session.sync_all()).unwrap();
    assert_eq!(call(&session, &second, "module", ()).unwrap(), Value::Int(73));
}
