//! The library on workers of a session.

use disco::{Builder, LaneSession, Tensor, Value, WorkerId, block_on};
use disco_ffi::{Module, Raised};

use super::library;

fn loaded() -> (LaneSession, Module) {
    let session = Builder::threads(2).start().unwrap();
    let module = block_on(Module::load(&session, library())).unwrap();
    (session, module)
}

fn call(session: &LaneSession, module: &Module, name: &str, args: impl disco::IntoArgs) -> disco::Result<Value> {
    let result = block_on(async { session.call(&module.function(session, name).await?, args).await })?;
    block_on(session.value(&result, WorkerId::new(1)))
}

#[test]
fn functions_take_and_return_values_and_tensors() {
    let (session, module) = loaded();
    assert_eq!(call(&session, &module, "add", (40, 2)).unwrap(), Value::Int(42));
    let items = vec![Value::Int(1), Value::from("two"), Value::None];
    let text = call(&session, &module, "describe", (items,)).unwrap();
    assert_eq!(text, Value::from("an int 1; a string \"two\"; none none"));
    let tensor = Tensor::from_slice(&[1f64, 2.0], 2).unwrap();
    let array = Value::from(vec![Value::from(&tensor)]);
    let text = call(&session, &module, "describe", (array,)).unwrap();
    assert_eq!(text, Value::from("a tensor tensor f64[2] on cpu"));
}

#[test]
fn a_tensor_is_changed_in_place() {
    let session = Builder::threads(1).start().unwrap();
    let module = block_on(Module::load(&session, library())).unwrap();
    let tensor = Tensor::from_slice(&[1f64, 2.0], 2).unwrap();
    let scaled = block_on(async { session.call(&module.function(&session, "scale").await?, (&tensor, 3.0)).await });
    let scaled: Tensor = block_on(session.get(&scaled.unwrap(), WorkerId::new(0))).unwrap();
    assert_eq!(scaled.to_vec::<f64>().unwrap(), [3.0, 6.0]);
    assert_eq!(scaled.data(), tensor.data(), "the library shares the elements");
}

#[test]
fn errors_and_panics_have_a_kind_and_a_text() {
    let (session, module) = loaded();
    let failure = |name: &str, arg: Value| {
        let error = call(&session, &module, name, (arg,)).unwrap_err();
        block_on(session.recover()).unwrap();
        let raised = error.downcast_ref::<Raised>().unwrap();
        format!("{}: {}", raised.kind, raised.message)
    };
    assert_eq!(failure("root", Value::Float(-1.0)), "ValueError: -1 has no square root");
    assert_eq!(failure("root", Value::from("x")), "TypeError: argument 0: expected a float, got a string");
    assert_eq!(failure("add", Value::Int(1)), "TypeError: expected 2 arguments, got 1");
    assert_eq!(failure("panic", Value::from("on purpose")), "RuntimeError: panicked: on purpose");
}
