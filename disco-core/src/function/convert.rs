//! Rust types as arguments and results of worker functions.

use std::any::type_name;
use std::rc::Rc;
use std::sync::Arc;

use super::{Arg, Args, BoxError, Function, Object, Opaque};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Error;
use crate::mesh::Mesh;
use crate::scope::Scope;
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::value::Value;

/// A type that a worker function can take.
///
/// `Option<T>` also takes none. `Rc<T>` takes a value that a worker function returned as [`Opaque`]. Integer types take
/// integers that fit; floats take integers too. `Vec<T>` of numbers, truth values or strings takes an array, and a pair
/// an array of two; each element is a value of its own, so a [`Tensor`] is the type for many numbers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no type of values: no argument of a worker function, and nothing that `get` reads",
    label = "not a type of values",
    note = "a value is an integer of up to 64 bits, `usize`, `f32`, `f64`, `bool`, `String`, `Arc<str>`, `Vec<u8>`, a `Vec` of numbers or strings, a pair, a `Tensor`, a `Shape`, a `DType`, a `Device`, a `Mesh`, a `Scope`, a `Value`, an `Object`, a `Function`, an `Option` of one of these, or `Rc<T>` of a value that another worker function returned as `Opaque`",
    note = "a struct of any serde type is taken as `Json(value): Json<T>` (feature `serde`), an own type with `register_object!`, and many numbers as a `Tensor`",
    note = "a worker function takes owned arguments: `String` instead of `&str`, `Tensor` instead of `&Tensor`"
)]
pub trait FromArg: Sized {
    /// The type as text, for messages.
    fn expected() -> &'static str;

    /// Converts the argument; none if it is of another type.
    fn from_arg(arg: Arg<'_>) -> Option<Self>;

    /// A refused argument as text, for messages: its kind, and the fault of its content.
    fn found(arg: Arg<'_>) -> String {
        arg.kind().into()
    }
}

/// A type that a worker function can return.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the result of a worker function",
    label = "not a result of a worker function",
    note = "a result is `()`, an integer, a float, a `bool`, a string, `Vec<u8>`, a `Vec` of numbers or strings, a pair, a `Tensor`, a `Shape`, a `DType`, a `Device`, a `Mesh`, a `Scope`, a `Value`, an `Object`, a `Function`, or an `Option` of one of these",
    note = "a struct of any serde type is returned as `Json(value)` (feature `serde`), an own type with `register_object!`, and many numbers as a `Tensor`",
    note = "a value of another type stays on its worker if the function returns `Opaque::new(value)`"
)]
pub trait IntoObject {
    /// Converts the result to the object for the register.
    fn into_object(self) -> Object;

    /// As [`IntoObject::into_object`], for a type with values that can't be converted.
    ///
    /// # Errors
    /// The value can't be converted. The worker function fails with the error.
    fn try_into_object(self) -> Result<Object, BoxError>
    where
        Self: Sized,
    {
        Ok(self.into_object())
    }
}

impl Args<'_> {
    /// Argument `index` as a `T`.
    ///
    /// # Errors
    /// As [`Args::arg`], and [`Error::Argument`] if the argument does not convert to `T`.
    #[inline]
    pub fn take<T: FromArg>(&self, index: usize) -> Result<T, Error> {
        let arg = self.arg(index)?;
        T::from_arg(arg).ok_or_else(|| Error::Argument { index, expected: T::expected(), found: T::found(arg) })
    }
}

macro_rules! from_arg {
    ($($ty:ty, $expected:literal, $pattern:pat => $value:expr;)*) => {
        $(impl FromArg for $ty {
            fn expected() -> &'static str {
                $expected
            }

            #[inline]
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
    bool, "a bool", Value::Bool(x) => Some(*x);
    Arc<str>, "a string", Value::Str(x) => Some(x.clone());
    String, "a string", Value::Str(x) => Some(x.to_string());
    Arc<[u8]>, "bytes", Value::Bytes(x) => Some(x.clone());
    Vec<u8>, "bytes", Value::Bytes(x) => Some(x.to_vec());
    DType, "a dtype", Value::DType(x) => Some(*x);
    Device, "a device", Value::Device(x) => Some(*x);
    Shape, "a shape", Value::Shape(x) => Some(x.clone());
    Tensor, "a tensor", Value::Tensor(x) => Some(x.clone());
    Vec<Value>, "an array", Value::Array(x) => Some(x.to_vec());
    Vec<(Value, Value)>, "a map", Value::Map(x) => Some(x.to_vec());
}

macro_rules! vec_from_arg {
    ($($ty:ty, $expected:literal;)*) => {
        $(impl FromArg for Vec<$ty> {
            fn expected() -> &'static str {
                concat!("an array of ", $expected)
            }

            fn from_arg(arg: Arg<'_>) -> Option<Self> {
                match arg.value()? {
                    Value::Array(items) => items.iter().map(|item| <$ty>::from_arg(Arg::Value(item))).collect(),
                    _ => None,
                }
            }
        })*
    };
}

vec_from_arg! {
    f64, "floats";
    f32, "floats";
    i64, "ints";
    i32, "ints of 32 bits";
    u64, "unsigned ints";
    usize, "unsigned ints";
    isize, "ints";
    u32, "unsigned ints of 32 bits";
    bool, "bools";
    String, "strings";
}

/// Types that are texts as arguments. A text that the type refuses is an argument of a wrong type, with the reason.
macro_rules! text_from_arg {
    ($($ty:ty, $expected:literal, $($pattern:pat => $value:expr,)*;)*) => {
        $(impl FromArg for $ty {
            fn expected() -> &'static str {
                $expected
            }

            fn from_arg(arg: Arg<'_>) -> Option<Self> {
                match arg.value()? {
                    Value::Str(text) => text.parse().ok(),
                    $($pattern => $value,)*
                    _ => None,
                }
            }

            fn found(arg: Arg<'_>) -> String {
                let refused = arg.value().and_then(|value| match value {
                    Value::Str(text) => text.parse::<Self>().err(),
                    _ => None,
                });
                refused.map_or_else(|| arg.kind().into(), |error| format!("a string: {error}"))
            }
        })*
    };
}

text_from_arg! {
    Mesh, "a mesh",;
    Scope, "a scope", Value::Bool(in_group) => Some((*in_group).into()),;
}

impl<A: FromArg, B: FromArg> FromArg for (A, B) {
    fn expected() -> &'static str {
        "a pair"
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        match arg.value()? {
            Value::Array(items) => match &items[..] {
                [a, b] => Some((A::from_arg(Arg::Value(a))?, B::from_arg(Arg::Value(b))?)),
                _ => None,
            },
            _ => None,
        }
    }
}

macro_rules! integer_from_arg {
    ($($ty:ident, $expected:literal;)*) => {
        $(impl FromArg for $ty {
            fn expected() -> &'static str {
                $expected
            }

            #[inline]
            fn from_arg(arg: Arg<'_>) -> Option<Self> {
                match arg.value()? {
                    Value::Int(x) => (*x).try_into().ok(),
                    _ => None,
                }
            }

            fn found(arg: Arg<'_>) -> String {
                match arg.value() {
                    Some(Value::Int(x)) => format!("an int: {x} does not fit in {}", stringify!($ty)),
                    _ => arg.kind().into(),
                }
            }
        })*
    };
}

integer_from_arg! {
    i64, "an int";
    isize, "an int";
    i32, "an int of 32 bits";
    i16, "an int of 16 bits";
    i8, "an int of 8 bits";
    u64, "an unsigned int";
    usize, "an unsigned int";
    u32, "an unsigned int of 32 bits";
    u16, "an unsigned int of 16 bits";
    u8, "an unsigned int of 8 bits";
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

#[diagnostic::do_not_recommend]
impl<T: Into<Value>> IntoObject for T {
    fn into_object(self) -> Object {
        Object::Value(self.into())
    }
}

macro_rules! integer_into_object {
    ($($ty:ty),*) => {
        $(
            /// An integer that does not fit in `i64` makes the worker function fail.
            impl IntoObject for $ty {
                fn into_object(self) -> Object {
                    Object::Value(Value::try_from(self).unwrap_or(Value::None))
                }

                fn try_into_object(self) -> Result<Object, BoxError> {
                    Ok(Object::Value(Value::try_from(self)?))
                }
            }
        )*
    };
}

integer_into_object!(u64, usize, isize, Vec<u64>, Vec<usize>, Vec<isize>);
