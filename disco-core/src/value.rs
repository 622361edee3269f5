//! Values of the control plane: arguments and replies.

use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::codec::Writer;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Error;
use crate::id::RegisterId;
use crate::mesh::Mesh;
use crate::scope::Scope;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// An argument or a reply. Cheap to clone.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing.
    None,
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A float.
    Float(f64),
    /// Text.
    Str(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// An element type.
    DType(DType),
    /// A device.
    Device(Device),
    /// Extents.
    Shape(Shape),
    /// Each worker's object in this register.
    Register(RegisterId),
    /// An object of a registered type.
    Object(Arc<dyn WireObject>),
    /// A tensor. Thread lanes pass it by reference, other lanes by copy.
    Tensor(Tensor),
    /// A list of values, nested at most [`Value::MAX_DEPTH`] deep. Registers are not permitted in it.
    Array(Arc<[Value]>),
    /// Pairs of a key and a value, in their order. The same limits apply as to an array.
    Map(Arc<[(Value, Value)]>),
    /// Values that together are one object of a program, under a number that the program gives to objects of its kind. The
    /// same limits apply as to an array. Functions of C and workers of TVM don't take it.
    Tagged(i32, Arc<[Value]>),
}

/// An object that can be an argument, with the type index and the encoding of its content.
/// [`register_object!`](crate::register_object) registers the decoding.
pub trait WireObject: Any + Debug + Send + Sync {
    /// The type index. Indices up to 8191 are reserved for TVM and Disco.
    fn type_index(&self) -> i32;

    /// Number of bytes that [`WireObject::write`] appends.
    fn size(&self) -> usize;

    /// Appends the content.
    fn write(&self, to: &mut Writer);
}

impl Value {
    /// Largest number of arrays and maps around a value that a lane carries.
    pub const MAX_DEPTH: usize = 16;

    /// The kind as text, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::None => "none",
            Value::Int(_) => "an int",
            Value::Bool(_) => "a bool",
            Value::Float(_) => "a float",
            Value::Str(_) => "a string",
            Value::Bytes(_) => "bytes",
            Value::DType(_) => "a dtype",
            Value::Device(_) => "a device",
            Value::Shape(_) => "a shape",
            Value::Register(_) => "a register",
            Value::Object(_) => "an object",
            Value::Tensor(_) => "a tensor",
            Value::Array(_) => "an array",
            Value::Map(_) => "a map",
            Value::Tagged(..) => "a tagged value",
        }
    }

    /// Size in bytes of a content without a fixed size: elements of a tensor, bytes, a string, a shape, an object, or
    /// the items of an array or map. 0 for other values.
    pub fn payload_len(&self) -> usize {
        match self {
            Value::Str(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            Value::Shape(shape) => 8 * shape.len(),
            Value::Object(object) => object.size(),
            Value::Tensor(tensor) => tensor.byte_len(),
            Value::Array(items) | Value::Tagged(_, items) => items.iter().map(Value::item_len).sum(),
            Value::Map(items) => items.iter().map(|(key, value)| key.item_len() + value.item_len()).sum(),
            _ => 0,
        }
    }

    /// Size in bytes that an item of an array is counted with.
    fn item_len(&self) -> usize {
        size_of::<Self>() + self.payload_len()
    }

    /// Calls `visit` with each tensor of the value: the value itself, or tensors in its arrays and maps.
    pub fn visit_tensors<'a>(&'a self, visit: &mut impl FnMut(&'a Tensor)) {
        match self {
            Value::Tensor(tensor) => visit(tensor),
            Value::Array(items) | Value::Tagged(_, items) => items.iter().for_each(|item| item.visit_tensors(visit)),
            Value::Map(items) => items.iter().for_each(|(key, value)| {
                key.visit_tensors(visit);
                value.visit_tensors(visit);
            }),
            _ => {}
        }
    }

    /// The value with each tensor replaced by the result of `map`.
    ///
    /// # Errors
    /// The first error of `map`.
    pub(crate) fn map_tensors(&self, map: &mut impl FnMut(&Tensor) -> Result<Tensor, Error>) -> Result<Self, Error> {
        let mut all = |items: &[Self]| items.iter().map(|item| item.map_tensors(map)).collect::<Result<_, _>>();
        Ok(match self {
            Value::Array(items) => Value::Array(all(items)?),
            Value::Tagged(tag, items) => Value::Tagged(*tag, all(items)?),
            Value::Tensor(tensor) => Value::Tensor(map(tensor)?),
            Value::Map(items) => {
                let mut pair = |(key, value): &(Self, Self)| Ok((key.map_tensors(map)?, value.map_tensors(map)?));
                Value::Map(items.iter().map(&mut pair).collect::<Result<_, Error>>()?)
            }
            other => other.clone(),
        })
    }
}

/// Compares contents. Tensors are equal if they are the same tensor; objects are also equal if their encodings are
/// equal.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Value::None, Value::None) => true,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a == b,
            (Value::Str(a), Value::Str(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::DType(a), Value::DType(b)) => a == b,
            (Value::Device(a), Value::Device(b)) => a == b,
            (Value::Shape(a), Value::Shape(b)) => a == b,
            (Value::Register(a), Value::Register(b)) => a == b,
            (Value::Object(a), Value::Object(b)) => {
                let bytes = |object: &Arc<dyn WireObject>| {
                    let mut writer = Writer::default();
                    object.write(&mut writer);
                    writer.into_bytes()
                };
                a.type_index() == b.type_index() && bytes(a) == bytes(b)
            }
            (Value::Array(a), Value::Array(b)) => a == b,
            (Value::Map(a), Value::Map(b)) => a == b,
            (Value::Tagged(a, items), Value::Tagged(b, others)) => a == b && items == others,
            (Value::Tensor(a), Value::Tensor(b)) => {
                a.data() == b.data() && (a.dtype(), a.shape()) == (b.dtype(), b.shape())
            }
            _ => false,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("none"),
            Value::Int(x) => write!(f, "{x}"),
            Value::Bool(x) => write!(f, "{x}"),
            Value::Float(x) => write!(f, "{x:?}"),
            Value::Str(x) => write!(f, "{x:?}"),
            Value::Bytes(x) => write!(f, "{} bytes", x.len()),
            Value::DType(x) => write!(f, "{x}"),
            Value::Device(x) => write!(f, "{x}"),
            Value::Shape(x) => write!(f, "{x}"),
            Value::Register(x) => write!(f, "{x}"),
            Value::Object(x) => write!(f, "{x:?}"),
            Value::Tensor(x) => write!(f, "{x}"),
            Value::Array(items) => write_list(f, items),
            Value::Tagged(tag, items) => {
                write!(f, "tagged {tag} ")?;
                write_list(f, items)
            }
            Value::Map(items) => {
                let items: Vec<_> = items.iter().map(|(key, value)| format!("{key}: {value}")).collect();
                write!(f, "{{{}}}", items.join(", "))
            }
        }
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, items: &[Value]) -> fmt::Result {
    let items: Vec<_> = items.iter().map(Value::to_string).collect();
    write!(f, "[{}]", items.join(", "))
}

macro_rules! from_vec {
    ($($ty:ty),*) => {
        $(impl From<Vec<$ty>> for Value {
            fn from(items: Vec<$ty>) -> Self {
                Value::Array(items.into_iter().map(Value::from).collect())
            }
        })*
    };
}

from_vec!(f64, f32, i64, i32, u32, bool, String);

impl<A: Into<Self>, B: Into<Self>> From<(A, B)> for Value {
    fn from((a, b): (A, B)) -> Self {
        Value::Array([a.into(), b.into()].into())
    }
}

macro_rules! from {
    ($($ty:ty => $variant:ident($x:ident) $value:expr),* $(,)?) => {
        $(impl From<$ty> for Value {
            fn from($x: $ty) -> Self {
                Value::$variant($value)
            }
        })*
    };
}

from! {
    i64 => Int(x) x,
    i32 => Int(x) x.into(),
    i16 => Int(x) x.into(),
    i8 => Int(x) x.into(),
    u32 => Int(x) x.into(),
    u16 => Int(x) x.into(),
    u8 => Int(x) x.into(),
    bool => Bool(x) x,
    f64 => Float(x) x,
    f32 => Float(x) x.into(),
    &str => Str(x) x.into(),
    String => Str(x) x.into(),
    Arc<str> => Str(x) x,
    &[u8] => Bytes(x) x.into(),
    Vec<u8> => Bytes(x) x.into(),
    DType => DType(x) x,
    Device => Device(x) x,
    Shape => Shape(x) x,
    Tensor => Tensor(x) x,
    &Tensor => Tensor(x) x.clone(),
    Vec<Value> => Array(x) x.into(),
    &[Value] => Array(x) x.into(),
    Vec<(Value, Value)> => Map(x) x.into(),
    Mesh => Str(x) x.to_string().into(),
    &Mesh => Str(x) x.to_string().into(),
}

/// [`Scope::World`] and [`Scope::Group`] are the flag `in_group` of TVM's functions; another scope is a text.
impl From<&Scope> for Value {
    fn from(scope: &Scope) -> Self {
        match scope {
            Scope::World => Value::Bool(false),
            Scope::Group => Value::Bool(true),
            Scope::Along(_) => Value::Str(scope.to_string().into()),
        }
    }
}

impl From<Scope> for Value {
    fn from(scope: Scope) -> Self {
        (&scope).into()
    }
}

macro_rules! try_from {
    ($($ty:ty),*) => {
        $(
            /// An integer that does not fit in [`Value::Int`] is an [`Error::Invalid`] with the integer in its text.
            impl TryFrom<$ty> for Value {
                type Error = Error;

                fn try_from(int: $ty) -> Result<Self, Error> {
                    let int_or_error = i64::try_from(int).map_err(|_| Error::invalid(format!("{int} does not fit in i64")));
                    int_or_error.map(Value::Int)
                }
            }

            /// As for one integer.
            impl TryFrom<Vec<$ty>> for Value {
                type Error = Error;

                fn try_from(ints: Vec<$ty>) -> Result<Self, Error> {
                    ints.into_iter().map(Value::try_from).collect::<Result<_, _>>().map(Value::Array)
                }
            }
        )*
    };
}

try_from!(u64, usize, isize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsigned_integer_that_does_not_fit_is_an_error_with_its_value() {
        assert_eq!(Value::try_from(7usize).unwrap(), Value::Int(7));
        assert_eq!(Value::try_from(1u64 << 62).unwrap(), Value::Int(1 << 62));
        let error = Value::try_from(u64::MAX).unwrap_err().to_string();
        assert_eq!(error, "18446744073709551615 does not fit in i64");
    }

    #[test]
    fn arrays_and_maps_print_their_items_and_are_equal_by_content() {
        let items = || vec![Value::Int(1), Value::from("x"), Value::from(vec![Value::None])];
        let map = Value::from(vec![(Value::from("a"), Value::from(items()))]);
        assert_eq!(map.to_string(), r#"{"a": [1, "x", [none]]}"#);
        assert_eq!(Value::from(items()), Value::from(items()));
        assert_ne!(Value::from(items()), Value::from(vec![Value::Int(1)]));
        let tagged = |tag| Value::Tagged(tag, items().into());
        assert_eq!(tagged(3).to_string(), r#"tagged 3 [1, "x", [none]]"#);
        assert!(tagged(3) == tagged(3) && tagged(3) != tagged(4) && tagged(3) != Value::from(items()));
        assert_eq!(Value::from(vec![Value::from("four")]).payload_len(), 24 + 4);
    }

    #[test]
    fn a_value_has_a_size_of_three_words() {
        assert_eq!(size_of::<Value>(), 24);
    }
}
