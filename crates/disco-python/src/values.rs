//! Python objects as values of commands, and back.
//!
//! Numbers, texts, bytes and `None` are values of their own. An array crosses as a tensor with the name of its library, and
//! everything else as a pickle, whose buffers are tensors beside it.

use std::sync::Arc;

use disco::{DType, Shape, Value};
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::arrays;
use crate::tensor::{self, Elements, Tensor};

/// Tags of values that are one object: a pickle with its buffers; the name of a library and a tensor; why an object can't be
/// sent; no object, since the call has failed; a pickle with handles among its objects: their number, which are arguments of their
/// own, before the rest.
const PICKLE: i32 = 1;
const ARRAY: i32 = 2;
const REFUSED: i32 = 3;
const FAILED: i32 = 4;
const NESTED: i32 = 5;

/// The value for an object, which [`decode`] makes the object again.
///
/// # Errors
/// The object can't be pickled.
pub(crate) fn encode(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    encode_with(object, None)
}

/// As [`encode`]; handles in the object go into `handles`, a list.
pub(crate) fn encode_with(object: &Bound<'_, PyAny>, handles: Option<&Bound<'_, PyList>>) -> PyResult<Value> {
    if let Some(value) = simple(object)? {
        return Ok(value);
    }
    if let Some(library) = arrays::plain_library_of(object) {
        match arrays::contiguous(object, None, true) {
            // Complex numbers: the library pickles them.
            Ok(imported) if imported.is_complex => {}
            Ok(imported) => {
                // A thread worker gets the memory itself, and may write.
                let tensor = if imported.is_read_only {
                    tensor::copied(object.py(), &imported.tensor)?
                } else {
                    imported.tensor
                };
                return Ok(Value::Tagged(ARRAY, [library.into(), Value::Tensor(tensor)].into()));
            }
            // Elements that DLPack does not know, such as texts: the library pickles them.
            Err(error) if error.is_instance_of::<PyBufferError>(object.py()) && library != "disco" => {}
            Err(error) => return Err(error),
        }
    }
    pickle(object, handles)
}

/// The value of a number, a text, bytes or `None`.
pub(crate) fn simple(object: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    Ok(Some(if object.is_none() {
        Value::None
    } else if object.is_exact_instance_of::<PyBool>() {
        Value::Bool(object.extract()?)
    } else if object.is_exact_instance_of::<PyInt>() {
        match object.extract() {
            Ok(int) => Value::Int(int),
            // Python's integers have no limit.
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => return Ok(None),
            Err(error) => return Err(error),
        }
    } else if object.is_exact_instance_of::<PyFloat>() {
        Value::Float(object.extract()?)
    } else if object.is_exact_instance_of::<PyString>() {
        match object.cast::<PyString>()?.to_str() {
            Ok(text) => Value::from(text),
            // Lone surrogates, which file names may have.
            Err(_) => return Ok(None),
        }
    } else if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        Value::from(bytes.as_bytes())
    } else {
        return Ok(None);
    }))
}

fn pickle(object: &Bound<'_, PyAny>, handles: Option<&Bound<'_, PyList>>) -> PyResult<Value> {
    let (py, before) = (object.py(), handles.map_or(0, |handles| handles.len()));
    let (pickled, buffers): (Bound<'_, PyBytes>, Vec<Bound<'_, PyAny>>) =
        py.import("disco._values")?.getattr("dump")?.call1((object, handles))?.extract()?;
    let nested = handles.map_or(0, |handles| handles.len()) - before;
    let (tag, mut items) = if nested > 0 { (NESTED, vec![Value::Int(nested as i64)]) } else { (PICKLE, Vec::new()) };
    items.push(Value::from(pickled.as_bytes()));
    for buffer in buffers {
        items.push(Value::Tensor(lent(&buffer)?));
    }
    Ok(Value::Tagged(tag, items.into()))
}

/// The number of handles in the object of an argument, which are the last arguments of the call.
pub(crate) fn nested(value: Option<&Value>) -> usize {
    match value {
        Some(Value::Tagged(NESTED, items)) => match items.first() {
            Some(Value::Int(count)) => usize::try_from(*count).unwrap_or(usize::MAX),
            _ => 0,
        },
        _ => 0,
    }
}

/// The object for an argument with `handles` among its objects.
pub(crate) fn decode_nested<'py>(
    py: Python<'py>,
    value: &Value,
    handles: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Tagged(NESTED, items) => match &items[..] {
            [_, Value::Bytes(pickled), buffers @ ..] => unpickled(py, pickled, buffers, handles),
            _ => Err(PyValueError::new_err(OTHER_VERSION)),
        },
        other => decode(py, other),
    }
}

/// The object of a pickle.
fn unpickled<'py>(
    py: Python<'py>,
    pickled: &[u8],
    buffers: &[Value],
    handles: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let elements = |buffer: &Value| match buffer {
        Value::Tensor(tensor) => Ok(Elements(tensor.clone())),
        other => Err(PyTypeError::new_err(format!("{} is no buffer of a pickle", other.kind()))),
    };
    let buffers = buffers.iter().map(elements).collect::<PyResult<Vec<_>>>()?;
    py.import("disco._values")?.getattr("load")?.call1((PyBytes::new(py, pickled), buffers, handles))
}

const OTHER_VERSION: &str = "the value is not what a Python function sends: the worker has another version";

/// The bytes of a memoryview, in place.
fn lent(view: &Bound<'_, PyAny>) -> PyResult<disco::Tensor> {
    let bytes: usize = view.getattr("nbytes")?.extract()?;
    tensor::of_buffer(view, DType::U8, Shape::from(bytes))
}

/// The object for a value.
///
/// # Errors
/// The value was refused when it was sent, or its pickle can't be read.
pub(crate) fn decode<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::None => py.None().into_bound(py),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        Value::Int(int) => int.into_pyobject(py)?.into_any(),
        Value::Float(float) => float.into_pyobject(py)?.into_any(),
        Value::Str(text) => PyString::new(py, text).into_any(),
        Value::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Value::DType(dtype) => PyString::new(py, dtype.name()).into_any(),
        Value::Device(device) => PyString::new(py, &device.to_string()).into_any(),
        Value::Shape(shape) => PyTuple::new(py, shape.iter())?.into_any(),
        Value::Tensor(tensor) => Bound::new(py, Tensor(tensor.clone()))?.into_any(),
        Value::Tagged(tag, items) => decode_tagged(py, *tag, items)?,
        Value::Array(items) => {
            let list = PyList::empty(py);
            items.iter().try_for_each(|item| list.append(decode(py, item)?))?;
            list.into_any()
        }
        Value::Map(items) => {
            let dict = PyDict::new(py);
            items.iter().try_for_each(|(key, value)| dict.set_item(decode(py, key)?, decode(py, value)?))?;
            dict.into_any()
        }
        other => return Err(PyTypeError::new_err(format!("{} has no form in Python", other.kind()))),
    })
}

fn decode_tagged<'py>(py: Python<'py>, tag: i32, items: &[Value]) -> PyResult<Bound<'py, PyAny>> {
    match (tag, items) {
        (ARRAY, [Value::Str(library), Value::Tensor(tensor)]) => tensor::as_array(py, tensor.clone(), library),
        (PICKLE, [Value::Bytes(pickled), buffers @ ..]) => unpickled(py, pickled, buffers, Vec::new()),
        (REFUSED, [Value::Str(text)]) => Err(PyTypeError::new_err(text.to_string())),
        _ => Err(PyValueError::new_err(OTHER_VERSION)),
    }
}

/// The value of an object whose call has failed.
pub(crate) fn failed() -> Value {
    Value::Tagged(FAILED, [].into())
}

/// Whether a worker has no object, because the call has failed.
pub(crate) fn is_failed(value: &Value) -> bool {
    matches!(value, Value::Tagged(FAILED, _))
}

/// The value of an object that can't be sent.
pub(crate) fn refused(why: &str) -> Value {
    Value::Tagged(REFUSED, [why.into()].into())
}

/// The value for a result that a program gets; one that can't be sent becomes its error, for the caller only.
pub(crate) fn encode_result(object: &Bound<'_, PyAny>) -> Value {
    encode(object).unwrap_or_else(|error| {
        let name = object.get_type().qualname().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        let text = format!("a result of type {name} can't be sent to the controller: {error}; it stays on the worker");
        refused(&text)
    })
}

/// The value for an argument of a Rust or C function: what both languages have.
///
/// # Errors
/// The object has no such form.
pub(crate) fn plain(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    plain_at(object, 0)
}

fn plain_at(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > Value::MAX_DEPTH {
        return Err(PyValueError::new_err(format!("the object is nested more than {} deep", Value::MAX_DEPTH)));
    }
    let plain = |object: &Bound<'_, PyAny>| plain_at(object, depth + 1);
    if let Some(value) = simple(object)? {
        return Ok(value);
    }
    if object.hasattr("__dlpack__")? {
        let imported = arrays::contiguous(object, None, false)?;
        if imported.is_complex {
            return Err(PyTypeError::new_err("complex numbers have no form in other languages; pass their parts"));
        }
        return Ok(Value::Tensor(imported.tensor));
    }
    if let Ok(items) = object.cast::<PyDict>() {
        let pair = |(key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| Ok((plain(&key)?, plain(&value)?));
        return Ok(Value::Map(items.iter().map(pair).collect::<PyResult<_>>()?));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return Ok(Value::Array(object.try_iter()?.map(|item| plain(&item?)).collect::<PyResult<_>>()?));
    }
    // Numbers of other types, such as `numpy.float64`.
    if let Ok(index) = object.call_method0("__index__") {
        return Ok(Value::Int(index.extract()?));
    }
    if object.hasattr("__float__")? {
        return Ok(Value::Float(object.extract()?));
    }
    let name = object.get_type().qualname()?;
    Err(PyTypeError::new_err(format!(
        "{name} has no form in other languages; pass a number, a text, bytes, an array, or a list, tuple or dict of them"
    )))
}

/// The items of a list of names.
pub(crate) fn names(value: Option<&Value>) -> Vec<Arc<str>> {
    match value {
        Some(Value::Array(items)) => {
            let name = |item: &Value| if let Value::Str(name) = item { Some(name.clone()) } else { None };
            items.iter().filter_map(name).collect()
        }
        _ => Vec::new(),
    }
}
