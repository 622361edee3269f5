//! Rust types as arguments and results of worker functions.

use std::any::type_name;
use std::rc::Rc;
use std::sync::Arc;

use super::{Arg, BoxError, Function, Object, Opaque};
use crate::device::Device;
use crate::dtype::DType;
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::value::Value;

/// A type that a worker function can take.
///
/// `Option<T>` also takes none; `Rc<T>` takes a value that another worker function returned as [`Opaque`]; integers are
/// taken if they fit, and as floats too.
pub trait FromArg: Sized {
    /// The type in words, for messages.
    fn expected() -> &'static str;

    /// The argument as `Self`, if it is one.
    fn from_arg(arg: Arg<'_>) -> Option<Self>;

    /// An argument that is refused, in words, for messages: its kind, and what is wrong with its content.
    fn found(arg: Arg<'_>) -> String {
        arg.kind().into()
    }
}

/// A type that a worker function can return.
pub trait IntoObject {
    /// The object for the register.
    fn into_object(self) -> Object;

    /// As [`IntoObject::into_object`], for a type of which not every value becomes an object.
    ///
    /// # Errors
    /// This value does not; the worker function fails with the error.
    fn try_into_object(self) -> Result<Object, BoxError>
    where
        Self: Sized,
    {
        Ok(self.into_object())
    }
}

macro_rules! from_arg {
    ($($ty:ty, $expected:literal, $pattern:pat => $value:expr;)*) => {
        $(impl FromArg for $ty {
            fn expected() -> &'static str {
        $expected
    }

            fn from_arg(arg: Arg<'_>) -> Option<Self> {
                match arg.value()? {
                    $pattern => $value,
                    _ => None,
                }
            }
        })*
    };
}

from_arg! {
    i64, "an int", Value::Int(x) => Some(*x);
    i32, "an int of 32 bits", Value::Int(x) => (*x).try_into().ok();
    u32, "an unsigned int of 32 bits", Value::Int(x) => (*x).try_into().ok();
    u64, "an unsigned int", Value::Int(x) => (*x).try_into().ok();
    usize, "an unsigned int", Value::Int(x) => (*x).try_into().ok();
    bool, "a bool", Value::Bool(x) => Some(*x);
    Arc<str>, "a string", Value::Str(x) => Some(x.clone());
    String, "a string", Value::Str(x) => Some(x.to_string());
    Arc<[u8]>, "bytes", Value::Bytes(x) => Some(x.clone());
    Vec<u8>, "bytes", Value::Bytes(x) => Some(x.to_vec());
    DType, "a dtype", Value::DType(x) => Some(*x);
    Device, "a device", Value::Device(x) => Some(*x);
    Shape, "a shape", Value::Shape(x) => Some(x.clone());
    Tensor, "a tensor", Value::Tensor(x) => Some(x.clone());
}

impl FromArg for f64 {
    fn expected() -> &'static str {
        "a float"
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        match arg.value()? {
            Value::Float(x) => Some(*x),
            Value::Int(x) => Some(*x as f64),
            _ => None,
        }
    }
}

impl FromArg for f32 {
    fn expected() -> &'static str {
        "a float"
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        f64::from_arg(arg).map(|x| x as f32)
    }
}

impl FromArg for () {
    fn expected() -> &'static str {
        "none"
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        matches!(arg.value()?, Value::None).then_some(())
    }
}

impl FromArg for Value {
    fn expected() -> &'static str {
        "a value"
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        arg.value().cloned()
    }
}

impl FromArg for Object {
    fn expected() -> &'static str {
        "anything"
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        Some(match arg {
            Arg::Value(value) => Object::Value(value.clone()),
            Arg::Object(object) => object.clone(),
        })
    }
}

impl FromArg for Function {
    fn expected() -> &'static str {
        "a function"
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        match arg {
            Arg::Object(Object::Function(function)) => Some(function.clone()),
            _ => None,
        }
    }
}

impl<T: FromArg> FromArg for Option<T> {
    fn expected() -> &'static str {
        T::expected()
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        match arg.value() {
            Some(Value::None) => Some(None),
            _ => T::from_arg(arg).map(Some),
        }
    }

    fn found(arg: Arg<'_>) -> String {
        T::found(arg)
    }
}

impl<T: 'static> FromArg for Rc<T> {
    fn expected() -> &'static str {
        type_name::<T>()
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        match arg {
            Arg::Object(Object::Opaque(opaque)) => opaque.downcast(),
            _ => None,
        }
    }
}

impl IntoObject for Object {
    fn into_object(self) -> Object {
        self
    }
}

impl IntoObject for () {
    fn into_object(self) -> Object {
        Object::Value(Value::None)
    }
}

impl IntoObject for Function {
    fn into_object(self) -> Object {
        Object::Function(self)
    }
}

impl IntoObject for Opaque {
    fn into_object(self) -> Object {
        Object::Opaque(self)
    }
}

impl<T: IntoObject> IntoObject for Option<T> {
    fn into_object(self) -> Object {
        self.map_or(Object::Value(Value::None), T::into_object)
    }

    fn try_into_object(self) -> Result<Object, BoxError> {
        self.map_or(Ok(Object::Value(Value::None)), T::try_into_object)
    }
}

macro_rules! into_object {
    ($($ty:ty),*) => {
        $(impl IntoObject for $ty {
            fn into_object(self) -> Object {
                Object::Value(self.into())
            }
        })*
    };
}

into_object!(Value, i64, i32, u32, bool, f64, f32, &str, String, Arc<str>, Vec<u8>, DType, Device, Shape, Tensor);
