//! Calls of functions, and calls back.

use disco::{Session as _, SessionExt as _, SessionKind, Value, WorkerContext, WorkerId, block_on};
use disco_core::function::{Args, BoxError, Function};
use disco_core::{Error, Object};
use disco_ffi::{Libraries as _, Raised};

use crate::library::{self, library};
use crate::{call, failure, load, session, submit, without_numbers};

crate::tests![
    a_function_of_a_library_is_called_on_all_workers,
    results_of_calls_are_arguments_of_later_calls,
    a_library_calls_a_worker_function_with_the_context_of_its_worker,
    an_error_of_a_worker_function_passes_through_a_library,
    a_panic_of_a_worker_function_passes_through_a_library_as_an_error,
    a_raised_error_has_its_kind_its_text_and_the_worker in With,
    an_error_poisons_the_results_that_depend_on_it in With,
    a_global_function_is_called_by_its_name in With,
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
        _ => Function::new("panics", |_: &mut WorkerContext, _: &Args<'_>| panic!("on purpose")),
    })
}

fn a_function_of_a_library_is_called_on_all_workers(kind: SessionKind) {
    let library = library!("plain.c");
    let session = session(kind);
    let sum = submit(&session, &load(&session, library), "add4", (1, 2, 3, 4)).unwrap();
    assert_eq!(block_on(session.get_all_as::<i64>(&sum)).unwrap(), [10, 10]);
}

fn results_of_calls_are_arguments_of_later_calls(kind: SessionKind) {
    let library = library!("plain.c");
    let session = session(kind);
    let module = load(&session, library);
    let sum = submit(&session, &module, "add4", (1, 2)).unwrap();
    let worker = block_on(session.call_named("ffi_tests.whoami", ())).unwrap();
    assert_eq!(call(&session, &module, "add4", (&sum, &worker, 100)).unwrap(), Value::Int(104));
}

fn a_library_calls_a_worker_function_with_the_context_of_its_worker(kind: SessionKind) {
    let library = library!("plain.c");
    let session = session(kind);
    let module = load(&session, library);
    let function = block_on(session.call_named("ffi_tests.functions", ("worker",))).unwrap();
    assert_eq!(call(&session, &module, "apply", (&function, 7)).unwrap(), Value::Int(17));
    // A function of the library as an argument of itself.
    let apply = block_on(module.function(&session, "apply")).unwrap();
    let nested = block_on(session.call(&apply, (&apply, &function, 5))).unwrap();
    assert_eq!(block_on(session.get_all_as::<i64>(&nested)).unwrap(), [5, 15]);
}

fn an_error_of_a_worker_function_passes_through_a_library(kind: SessionKind) {
    let library = library!("plain.c");
    let session = session(kind);
    let module = load(&session, library);
    let function = block_on(session.call_named("ffi_tests.functions", ("fails",))).unwrap();
    let error = call(&session, &module, "apply", (&function,)).unwrap_err();
    let text = "worker 1: libplain.so:apply: no communicator on this worker: call `init_ccl` first";
    assert_eq!(without_numbers(&error.to_string()), text);
    assert_eq!(error.kind(), disco::error::ErrorKind::NoCommunicator);
}

fn a_panic_of_a_worker_function_passes_through_a_library_as_an_error(kind: SessionKind) {
    let library = library!("plain.c");
    let session = session(kind);
    let module = load(&session, library);
    let function = block_on(session.call_named("ffi_tests.functions", ("panics",))).unwrap();
    let text = failure(&session, &module, "apply", (&function,));
    assert_eq!(without_numbers(&text), "worker 1: libplain.so:apply: panicked: on purpose");
}

fn a_raised_error_has_its_kind_its_text_and_the_worker(kind: SessionKind) {
    let library = library!("raises.c");
    let session = session(kind);
    let module = load(&session, library);
    assert_eq!(call(&session, &module, "add1", (41,)).unwrap(), Value::Int(42));
    let error = call(&session, &module, "raises", ()).unwrap_err();
    let text = "worker 1: libraises.so:raises: ValueError: the number is too small";
    assert_eq!(without_numbers(&error.to_string()), text);
    let raised = error.downcast_ref::<Raised>().unwrap();
    assert_eq!((&*raised.kind, &*raised.message), ("ValueError", "the number is too small"));
}

fn an_error_poisons_the_results_that_depend_on_it(kind: SessionKind) {
    let library = library!("raises.c");
    let session = session(kind);
    let module = load(&session, library);
    let add1 = block_on(module.function(&session, "add1")).unwrap();
    let raised = submit(&session, &module, "raises", ()).unwrap();
    // The call may be refused already, since the failure of the earlier one is known.
    let text = match block_on(session.call(&add1, (&raised,))) {
        Ok(sum) => block_on(session.get(&sum, WorkerId::new(0))).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("libraises.so:raises") && text.contains("the number is too small"), "{text}");
    block_on(session.recover()).unwrap();
    let sum = block_on(session.call(&add1, (1,))).unwrap();
    assert_eq!(block_on(session.get_all_as::<i64>(&sum)).unwrap(), [2, 2]);
}

fn a_global_function_is_called_by_its_name(kind: SessionKind) {
    assert!(library::tvm_ffi().is_some());
    let session = session(kind);
    let array = block_on(async { session.call(&session.global_function("ffi.Array").await?, (1, "two")).await });
    let array = block_on(session.get(&array.unwrap(), WorkerId::new(1))).unwrap();
    assert_eq!(array, Value::from(vec![Value::Int(1), Value::from("two")]));
    let absent = block_on(async {
        session.sync_all().await?;
        session.global_function("no.such").await
    });
    let text = block_on(async { session.get(&absent?, WorkerId::new(1)).await }).unwrap_err().to_string();
    assert!(text.ends_with("libtvm_ffi has no global function `no.such`"), "{text}");
}
