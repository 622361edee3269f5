//! The worker functions that run Python.

use std::rc::Rc;

use disco::function::{Arg, Args, BoxError};
use disco::{Object, Opaque, Value, WorkerContext};
use disco_core::activity::TimeLimit;
use disco_core::function::{Function, FunctionEntry};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::access::Lent;
use crate::context::{self, Context};
use crate::errors::PythonError;
use crate::forks::end_child;
use crate::lock::attached;
use crate::tensor::Tensor;
use crate::values;

/// A Python object in a register. Without the interpreter's lock, a drop waits for the next function that takes it.
pub(crate) struct Held(pub(crate) Py<PyAny>);

/// A Python function, or why it can't be had; then each call of it fails.
struct Defined(Result<Py<PyAny>, String>);

/// Makes a Python function of its description by `disco._functions`.
fn define(_: &mut WorkerContext, name: String, described: Value) -> Result<Function, BoxError> {
    let callable = attached(|py| -> Result<Py<PyAny>, String> {
        let load = || py.import("disco._functions")?.getattr("load")?.call1((values::decode(py, &described)?,));
        load().map(Bound::unbind).map_err(|error: PyErr| PythonError::of(py, &error).to_string())
    });
    Ok(Function::with_inner(name, Rc::new(Defined(callable)), call))
}

/// Calls a Python function with the names of its last arguments and its arguments.
fn call(function: &Rc<Defined>, ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let callable = function.0.as_ref().map_err(|why| format!("the worker can't load the function: {why}"))?;
    attached(|py| {
        let names = values::names(args.arg(0)?.value());
        // Handles in objects are the last arguments.
        let mut handle = args.len();
        for index in 1..args.len() {
            handle = handle.saturating_sub(values::nested(args.arg(index)?.value()));
        }
        let mut objects = Vec::with_capacity(handle);
        let first_handle = handle;
        for index in 1..first_handle {
            let count = values::nested(args.arg(index)?.value());
            objects.push(match args.arg(index)?.value() {
                Some(value) if count > 0 => {
                    let handles = (handle..handle + count).map(|index| argument(py, args, index));
                    let handles = handles.collect::<Result<Vec<_>, _>>()?;
                    handle += count;
                    values::decode_nested(py, value, handles).map_err(|error| PythonError::of(py, &error))?
                }
                _ => argument(py, args, index)?,
            });
        }
        let positional = objects.len().checked_sub(names.len()).ok_or("the call has more names than arguments")?;
        let named = objects.split_off(positional);
        let kwargs = PyDict::new(py);
        let lent = Lent::new(ctx);
        let context = Context::of(py, &lent)?.into_any();
        let result = || -> PyResult<Object> {
            names.iter().zip(named).try_for_each(|(name, object)| kwargs.set_item(&**name, object))?;
            let given = std::iter::once(context).chain(objects);
            let given = PyTuple::new(py, given.collect::<Vec<_>>())?;
            let kwargs = if names.is_empty() { None } else { Some(&kwargs) };
            kept(&callable.bind(py).call(given, kwargs)?)
        };
        // Code of the arguments may have forked, too.
        end_child(py, None);
        let result = result();
        end_child(py, result.as_ref().err());
        drop(lent);
        result.map_err(|error| PythonError::of(py, &error).into())
    })
}

/// Argument `index` as a Python object.
fn argument<'py>(py: Python<'py>, args: &Args<'_>, index: usize) -> Result<Bound<'py, PyAny>, BoxError> {
    match args.arg(index)? {
        Arg::Value(value) | Arg::Object(Object::Value(value)) => {
            values::decode(py, value).map_err(|error| PythonError::of(py, &error).into())
        }
        Arg::Object(Object::Opaque(opaque)) => match (opaque.downcast::<Held>(), opaque.downcast::<NoItem>()) {
            (Some(held), _) => Ok(held.0.bind(py).clone()),
            (_, Some(why)) => Err(format!("argument {}: {}", index - 1, why.0).into()),
            _ => Err(format!("argument {}: {} is no Python object", index - 1, opaque.type_name()).into()),
        },
        other => Err(format!("argument {}: {} is no Python object", index - 1, other.kind()).into()),
    }
}

/// A result in a register: as a value if it is one for other languages, too, else as the object itself.
fn kept(object: &Bound<'_, PyAny>) -> PyResult<Object> {
    if let Ok(tensor) = object.cast::<Tensor>() {
        return Ok(Object::Value(Value::Tensor(tensor.get().0.clone())));
    }
    match values::simple(object)? {
        Some(value) => Ok(Object::Value(value)),
        None => Ok(Object::Opaque(Opaque::new(Held(object.clone().unbind())))),
    }
}

/// A value from the controller, as the object that Python functions get.
fn keep(_: &mut WorkerContext, value: Object) -> Result<Object, BoxError> {
    let Object::Value(value) = value else { return Ok(value) };
    attached(|py| {
        let object = || kept(&values::decode(py, &value)?);
        object().map_err(|error| PythonError::of(py, &error).into())
    })
}

/// The value of a result, for the controller. What can't be sent becomes a value that says so: a read fails no session.
fn export(args: &Args<'_>) -> Value {
    // The call that should have made the object has failed; the controller then asks for that failure.
    let Ok(arg) = args.arg(0) else { return values::failed() };
    let opaque = match arg {
        Arg::Value(value) | Arg::Object(Object::Value(value)) => return value.clone(),
        Arg::Object(Object::Opaque(opaque)) => opaque,
        other => return values::refused(&format!("{} can't be sent to the controller", other.kind())),
    };
    match (opaque.downcast::<Held>(), opaque.downcast::<NoItem>()) {
        (Some(held), _) => attached(|py| values::encode_result(held.0.bind(py))),
        (_, Some(why)) => values::refused(&why.0),
        _ => values::refused(&format!("{} can't be sent to the controller", opaque.type_name())),
    }
}

/// Why a result has no such item.
struct NoItem(String);

/// A result of a Python function as other languages take it.
fn plain(_: &mut WorkerContext, object: Object) -> Result<Object, BoxError> {
    let held = match &object {
        Object::Opaque(opaque) => opaque.downcast::<Held>(),
        _ => None,
    };
    let Some(held) = held else { return Ok(object) };
    attached(|py| values::plain(held.0.bind(py)).map(Object::Value).map_err(|error| PythonError::of(py, &error).into()))
}

/// An item of a result.
fn item(_: &mut WorkerContext, object: Object, index: i64, count: i64) -> Result<Object, BoxError> {
    attached(|py| {
        let item = || -> PyResult<Object> {
            let object = match &object {
                Object::Value(value) => values::decode(py, value)?,
                Object::Opaque(opaque) => match opaque.downcast::<Held>() {
                    Some(held) => held.0.bind(py).clone(),
                    None => py.None().into_bound(py),
                },
                _ => py.None().into_bound(py),
            };
            let items = py.import("disco._values")?.getattr("item")?.call1((object, index, count))?;
            kept(&items)
        };
        Ok(item().unwrap_or_else(|error| Object::Opaque(Opaque::new(NoItem(error.value(py).to_string())))))
    })
}

disco::register_function!("disco.python.define", define, limit: TimeLimit::Own);
disco::register_function!("disco.python.keep", keep, limit: TimeLimit::Own);
disco_core::inventory::submit! {
    FunctionEntry {
        name: "disco.python.export",
        call: |_, args| Ok(Object::Value(export(args))),
        limit: TimeLimit::Own,
        place: concat!(module_path!(), " at ", file!(), ":", line!()),
    }
}
disco::register_function!("disco.python.plain", plain, limit: TimeLimit::Own);
disco::register_function!("disco.python.item", item, limit: TimeLimit::Own);
disco::register_function!("disco.python.mesh", context::set_mesh, limit: TimeLimit::Own);
