//! Values in a command log.

use disco_core::{DType, Device, Value};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest string that a log contains, in bytes.
const MAX_TEXT: usize = 1 << 10;
/// Largest number of items of an array or a map, including the items of lists inside it.
const MAX_ITEMS: usize = 256;

/// A value without the content of its tensors, bytes and objects.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Described {
    /// Nothing.
    None,
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A float, as text: JSON has neither infinities nor NaN.
    #[serde(with = "float")]
    Float(f64),
    /// A string of at most 1 KiB.
    Str(Box<str>),
    /// An element type.
    #[serde(with = "text")]
    Dtype(DType),
    /// A device.
    #[serde(with = "text")]
    Device(Device),
    /// Extents.
    Shape(Box<[i64]>),
    /// Each worker's object in this register.
    Register(u32),
    /// Element type and extents of a tensor.
    Tensor(#[serde(with = "text")] DType, Box<[i64]>),
    /// A list of at most 256 items.
    Array(Vec<Described>),
    /// Pairs of at most 256 items together.
    Map(Vec<(Described, Described)>),
    /// Kind and number of bytes of another value: bytes, an object, a long string, a long list.
    Sized(Box<str>, u64),
}

impl Described {
    /// The description of an argument.
    pub fn of(value: &Value) -> Self {
        match (value, item_count(value) > MAX_ITEMS) {
            (Value::Array(items), false) => Self::Array(items.iter().map(Self::of).collect()),
            (Value::Map(items), false) => {
                Self::Map(items.iter().map(|(key, value)| (Self::of(key), Self::of(value))).collect())
            }
            (Value::Int(int), _) => Self::Int(*int),
            (Value::Bool(bool), _) => Self::Bool(*bool),
            (Value::Float(float), _) => Self::Float(*float),
            (Value::Str(text), _) if text.len() <= MAX_TEXT => Self::Str((**text).into()),
            (Value::Register(register), _) => Self::Register(register.index() as u32),
            (other, _) => Self::outline(other),
        }
    }

    /// The description of a value without its content, for replies: numbers become 0, strings become their length. Dtypes,
    /// devices and shapes are kept.
    pub fn outline(value: &Value) -> Self {
        match value {
            Value::None => Self::None,
            Value::Int(_) => Self::Int(0),
            Value::Bool(_) => Self::Bool(false),
            Value::Float(_) => Self::Float(0.0),
            Value::DType(dtype) => Self::Dtype(*dtype),
            Value::Device(device) => Self::Device(*device),
            Value::Shape(shape) => Self::Shape(shape.to_vec().into()),
            Value::Tensor(tensor) => Self::Tensor(tensor.dtype(), tensor.shape().to_vec().into()),
            other => Self::Sized(kind(other).into(), other.payload_len() as u64),
        }
    }
}

/// Number of items of an array or a map, including the items of lists inside it.
fn item_count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(|item| 1 + item_count(item)).sum(),
        Value::Map(items) => items.iter().map(|(key, value)| 2 + item_count(key) + item_count(value)).sum(),
        _ => 0,
    }
}

/// The kind of a value without an article: `string`.
fn kind(value: &Value) -> &'static str {
    let kind = value.kind();
    kind.split_once(' ').map_or(kind, |(_, noun)| noun)
}

/// Values that are written as their text.
mod text {
    use super::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(super) fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Floats with the shortest text that gives the same float again.
mod float {
    use super::{Deserializer, Serializer, text};

    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        text::serialize(&format_args!("{value:?}"), to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        text::deserialize(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disco_core::Tensor;

    #[test]
    fn content_of_tensors_bytes_and_replies_is_not_in_a_description() {
        let secret = Tensor::from_slice(&[77i64, 78], [2]).unwrap();
        let list = Value::from(vec![secret.clone().into(), Value::from(vec![99u8; 5]), Value::from("name")]);
        let text = serde_json::to_string(&Described::of(&list)).unwrap();
        assert_eq!(text, r#"{"array":[{"tensor":["i64",[2]]},{"sized":["bytes",5]},{"str":"name"}]}"#);
        let outline = |value: Value| serde_json::to_string(&Described::outline(&value)).unwrap();
        assert_eq!(outline("name".into()), r#"{"sized":["string",4]}"#);
        assert_eq!([outline(7.into()), outline(2.5.into())], [r#"{"int":0}"#, r#"{"float":"0.0"}"#]);
        let long = Value::from("x".repeat(MAX_TEXT + 1));
        assert_eq!(Described::of(&long), Described::Sized("string".into(), 1025));
        let many = Value::from(vec![Value::Int(1); MAX_ITEMS + 1]);
        assert!(matches!(Described::of(&many), Described::Sized(kind, _) if &*kind == "array"));
    }

    #[test]
    fn floats_without_a_form_in_json_are_read_as_they_were_written() {
        for float in [f64::INFINITY, -0.0, 0.1, f64::MIN_POSITIVE] {
            let text = serde_json::to_string(&Described::Float(float)).unwrap();
            assert_eq!(serde_json::from_str::<Described>(&text).unwrap(), Described::Float(float), "{text}");
        }
        let nan: Described = serde_json::from_str(r#"{"float":"NaN"}"#).unwrap();
        assert!(matches!(nan, Described::Float(float) if float.is_nan()));
    }
}
