//! Values of Disco as values of the C ABI.

use disco_core::function::{Arg, Function};
use disco_core::{DType, Device, Error, Object, Result, Value};

use crate::abi::TypeIndex;
use crate::foreign::ForeignObject;
use crate::heap;
use crate::library::TvmFfi;
use crate::raw;
use crate::shared::SharedLibrary;
use crate::value::Any;

/// Makes a function object of a worker function.
pub(crate) type Export = fn(&Function) -> Any;

/// Converts an argument. Tensors, shapes and bytes are not copied.
///
/// # Errors
/// Why libraries can't take the argument.
pub(crate) fn argument(arg: Arg<'_>, export: Export) -> Result<Any, String> {
    match arg {
        Arg::Value(argument) => value(argument),
        Arg::Object(argument) => object(argument, export),
        _ => Err(arg.kind().to_owned()),
    }
}

/// As [`argument`], for an object.
pub(crate) fn object(object: &Object, export: Export) -> Result<Any, String> {
    match object {
        Object::Value(inner) => value(inner),
        Object::Function(function) => Ok(export(function)),
        Object::Opaque(opaque) => match opaque.downcast::<ForeignObject>() {
            Some(foreign) => Ok(foreign.any().clone()),
            None => {
                let library = opaque.downcast::<SharedLibrary>();
                let module = library.and_then(|library| library.module().cloned());
                module.ok_or_else(|| format!("the Rust value {}", opaque.type_name()))
            }
        },
        other => Err(other.kind().to_owned()),
    }
}

fn value(value: &Value) -> Result<Any, String> {
    Ok(match value {
        Value::None => Any::NONE,
        Value::Int(int) => Any::plain(TypeIndex::INT, *int as u64),
        Value::Bool(bool) => Any::plain(TypeIndex::BOOL, u64::from(*bool)),
        Value::Float(float) => Any::plain(TypeIndex::FLOAT, float.to_bits()),
        Value::DType(dtype) => Any::plain(TypeIndex::DTYPE, dtype_content(*dtype)),
        Value::Device(device) => Any::plain(TypeIndex::DEVICE, device_content(*device)),
        Value::Str(text) => heap::string(text),
        Value::Bytes(bytes) => heap::bytes(bytes),
        Value::Shape(shape) => heap::shape(shape),
        Value::Tensor(tensor) => heap::tensor(tensor),
        Value::Array(items) => heap::array(items.iter().map(self::value).collect::<Result<_, _>>()?),
        Value::Map(items) => map(items)?,
        other => return Err(other.kind().to_owned()),
    })
}

/// A map. Its layout is private to libtvm_ffi, which therefore makes it.
fn map(items: &[(Value, Value)]) -> Result<Any, String> {
    let made = || -> Result<Any> {
        let function = TvmFfi::get()?.global("ffi.Map");
        let function = function.ok_or_else(|| Error::missing("libtvm_ffi has no function `ffi.Map`"))?;
        let mut args = Vec::with_capacity(2 * items.len());
        for (key, item) in items {
            args.push(value(key).map_err(Error::Invalid)?);
            args.push(value(item).map_err(Error::Invalid)?);
        }
        raw::call(&function, &args).map_err(|raised| Error::invalid(raised.to_string()))
    };
    made().map_err(|error| format!("a map, which only libtvm_ffi can make: {error}"))
}

fn dtype_content(dtype: DType) -> u64 {
    let (code, bits) = dtype.dlpack();
    u64::from(code) | u64::from(bits) << 8 | 1 << 16
}

fn device_content(device: Device) -> u64 {
    u64::from(device.kind.dlpack() as u32) | u64::from(device.ordinal as u32) << 32
}
