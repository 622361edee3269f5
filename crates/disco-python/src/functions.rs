//! The worker functions that run Python.

use std::rc::Rc;

use disco::function::{Arg, Args, BoxError};
use disco::{Object, Opaque, Value, WorkerContext};
use disco_core::function::Function;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::context::Context;
use crate::errors::PythonError;
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
        let mut objects = Vec::with_capacity(args.len());
        for index in 1..args.len() {
            objects.push(argument(py, args, index)?);
        }
        let named = objects.split_off(objects.len() - names.len());
        let kwargs = PyDict::new(py);
        let lent = Context::lend(py, ctx)?;
        let result = || -> PyResult<Object> {
            names.iter().zip(named).try_for_each(|(name, object)| kwargs.set_item(&**name, object))?;
            let given = std::iter::once(lent.bind(py).clone().into_any()).chain(objects);
            let given = PyTuple::new(py, given.collect::<Vec<_>>())?;
            let kwargs = if names.is_empty() { None } else { Some(&kwargs) };
            kept(&callable.bind(py).call(given, kwargs)?)
        };
        let result = result();
        lent.get().end();
        result.map_err(|error| PythonError::of(py, &error).into())
    })
}

/// Argument `index` as a Python object.
fn argument<'py>(py: Python<'py>, args: &Args<'_>, index: usize) -> Result<Bound<'py, PyAny>, BoxError> {
    match args.arg(index)? {
        Arg::Value(value) | Arg::Object(Object::Value(value)) => {
            values::decode(py, value).map_err(|error| PythonError::of(py, &error).into())
        }
        Arg::Object(Object::Opaque(opaque)) => match opaque.downcast::<Held>() {
            Some(held) => Ok(held.0.bind(py).clone()),
            None => Err(format!("argument {}: {} is no Python object", index - 1, opaque.type_name()).into()),
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

/// The value of a result, for the controller.
fn export(_: &mut WorkerContext, object: Object) -> Result<Value, BoxError> {
    match object {
        Object::Value(value) => Ok(value),
        Object::Opaque(opaque) => match opaque.downcast::<Held>() {
            Some(held) => Ok(attached(|py| values::encode_result(held.0.bind(py)))),
            None => Err(format!("{} can't be sent to the controller", opaque.type_name()).into()),
        },
        other => Err(format!("{} can't be sent to the controller", other.kind()).into()),
    }
}

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
        item().map_err(|error| PythonError::of(py, &error).into())
    })
}

disco::register_function!("disco.python.define", define);
disco::register_function!("disco.python.keep", keep);
disco::register_function!("disco.python.export", export);
disco::register_function!("disco.python.plain", plain);
disco::register_function!("disco.python.item", item);
