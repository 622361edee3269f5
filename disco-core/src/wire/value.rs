//! Encoding of one argument.

use std::sync::Arc;
use std::time::Duration;

use super::beside::Beside;
use super::object::{self, index};
use super::parts::{SHORT, object_head, read_axes, read_dtype, read_elements, tensor_bytes, write_dtype};
use super::{INLINE_LIMIT, Reader, WireError, Writer, beside, debug};
use crate::device::{Device, DeviceKind};
use crate::id::RegisterId;
use crate::tensor::Tensor;
use crate::value::{Value, WireObject};

/// Type indices of plain arguments.
mod code {
    pub(super) const NONE: i32 = 0;
    pub(super) const INT: i32 = 1;
    pub(super) const BOOL: i32 = 2;
    pub(super) const FLOAT: i32 = 3;
    pub(super) const DTYPE: i32 = 5;
    pub(super) const DEVICE: i32 = 6;
    /// A string or bytes without an object around them. TVM uses it for names of functions.
    pub(super) const RAW_STR: i32 = 8;
    pub(super) const BYTE_ARRAY: i32 = 9;
    /// A string or bytes that TVM keeps inside its 16-byte argument. On the wire only the outer type index differs.
    pub(super) const SHORT_STR: i32 = 11;
    pub(super) const SHORT_BYTES: i32 = 12;
}

impl Value {
    /// Appends the argument: its type index, then its content.
    pub(super) fn write(&self, to: &mut Writer) -> Result<(), WireError> {
        match self {
            Value::None => to.i32(code::NONE),
            Value::Int(int) => tagged(to, code::INT, *int),
            Value::Bool(bool) => tagged(to, code::BOOL, i64::from(*bool)),
            Value::Float(float) => {
                to.i32(code::FLOAT);
                to.f64(*float);
            }
            Value::DType(dtype) => {
                to.i32(code::DTYPE);
                write_dtype(*dtype, to);
                to.i32(0);
            }
            Value::Device(device) => {
                to.i32(code::DEVICE);
                to.i32(device.kind.dlpack());
                to.i32(device.ordinal);
            }
            Value::Str(text) => string(to, (code::SHORT_STR, index::STR), text.as_bytes()),
            Value::Bytes(bytes) => write_bytes(bytes, to),
            Value::Register(register) => {
                object_head(to, index::REGISTER);
                to.i64(register.wire());
            }
            Value::Shape(shape) => write_object(shape, to)?,
            Value::Object(object) => write_object(&**object, to)?,
            Value::Tensor(tensor) => write_tensor(tensor, to)?,
            Value::Array(_) | Value::Map(_) | Value::Tagged(..) => self.write_nested(1, to)?,
        }
        Ok(())
    }

    /// Appends an item inside of `depth` arrays and maps, or such an array or map itself.
    fn write_nested(&self, depth: usize, to: &mut Writer) -> Result<(), WireError> {
        let inner = || if depth > Self::MAX_DEPTH { Err(TOO_DEEP) } else { Ok(depth + 1) };
        match self {
            Value::Array(items) => {
                let inner = inner()?;
                object_head(to, index::ARRAY);
                write_items(items, inner, to)
            }
            Value::Tagged(tag, items) => {
                let inner = inner()?;
                object_head(to, index::TAGGED);
                to.i32(*tag);
                write_items(items, inner, to)
            }
            Value::Map(items) => {
                let inner = inner()?;
                object_head(to, index::MAP);
                to.u64(items.len() as u64);
                items.iter().try_for_each(|(key, value)| {
                    key.write_nested(inner, to)?;
                    value.write_nested(inner, to)
                })
            }
            Value::Register(_) => Err(NESTED_REGISTER),
            other => other.write(to),
        }
    }

    /// Takes an item inside of `depth` arrays and maps, or such an array or map itself.
    fn read_nested(depth: usize, from: &mut Reader<'_>, beside: Option<&mut Beside>) -> Result<Self, WireError> {
        let value = Self::read_at(depth, from, beside)?;
        if matches!(value, Value::Register(_)) { Err(NESTED_REGISTER) } else { Ok(value) }
    }

    /// Takes one argument. Its tensor may lie in the memory `beside` the packet.
    #[inline]
    pub(super) fn read(from: &mut Reader<'_>, beside: Option<&mut Beside>) -> Result<Self, WireError> {
        Self::read_at(0, from, beside)
    }

    /// Appends one argument to `values`, as [`Value::read`] takes it. The usual small ones are made in their place: a
    /// result that is passed on is copied at each step.
    #[inline]
    pub(super) fn append(
        from: &mut Reader<'_>,
        beside: Option<&mut Beside>,
        values: &mut Vec<Self>,
    ) -> Result<(), WireError> {
        match from.peek_i32() {
            Some(code::INT) => {
                from.i32()?;
                values.push(Value::Int(from.i64()?));
            }
            Some(code::FLOAT) => {
                from.i32()?;
                values.push(Value::Float(from.f64()?));
            }
            _ => values.push(Self::read(from, beside)?),
        }
        Ok(())
    }

    #[inline]
    fn read_at(depth: usize, from: &mut Reader<'_>, beside: Option<&mut Beside>) -> Result<Self, WireError> {
        match from.i32()? {
            code::NONE => Ok(Value::None),
            code::INT => Ok(Value::Int(from.i64()?)),
            code::BOOL => match from.i64()? {
                0 => Ok(Value::Bool(false)),
                1 => Ok(Value::Bool(true)),
                number => Err(WireError::Unknown { what: "bool", number }),
            },
            code::FLOAT => Ok(Value::Float(from.f64()?)),
            code::DTYPE => {
                let dtype = read_dtype(from)?;
                from.i32()?;
                Ok(Value::DType(dtype))
            }
            code::DEVICE => {
                let kind = from.i32()?;
                let known = DeviceKind::from_dlpack(kind);
                let kind = known.ok_or(WireError::Unknown { what: "device kind", number: kind.into() })?;
                Ok(Value::Device(Device::new(kind, from.i32()?)))
            }
            code::RAW_STR => read_str(from),
            code::BYTE_ARRAY => Ok(Value::Bytes(from.bytes()?.into())),
            outer => read_object(outer, depth, from, beside),
        }
    }
}

/// Appends the length of a list, then its items, which lie inside of `depth` arrays and maps.
fn write_items(items: &[Value], depth: usize, to: &mut Writer) -> Result<(), WireError> {
    to.u64(items.len() as u64);
    items.iter().try_for_each(|item| item.write_nested(depth, to))
}

/// The error for arrays and maps that are nested deeper than [`Value::MAX_DEPTH`].
const TOO_DEEP: WireError = WireError::Expected("arrays and maps that are nested at most 16 deep");

const NESTED_REGISTER: WireError = WireError::Expected("no register in an array or map");

/// Appends a string in TVM's encoding of the name of a function.
pub(super) fn write_raw_str(text: &str, to: &mut Writer) {
    to.i32(code::RAW_STR);
    to.bytes(text.as_bytes());
}

/// A duration in nanoseconds, saturated at `i64::MAX`.
pub(super) fn duration(duration: Duration) -> Value {
    Value::Int(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Largest text of an error that crosses a connection, in bytes.
pub(super) const TEXT_LIMIT: usize = 64 << 10;

/// The start of a text, truncated to at most [`TEXT_LIMIT`] bytes.
pub(super) fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_LIMIT)]
}

/// As [`Value::Bytes`].
pub(super) fn write_bytes(bytes: &[u8], to: &mut Writer) {
    string(to, (code::SHORT_BYTES, index::BYTES), bytes);
}

/// Takes an argument that must be an integer.
#[inline]
pub(super) fn read_int(from: &mut Reader<'_>) -> Result<i64, WireError> {
    match from.i32()? {
        code::INT => from.i64(),
        _ => Err(WireError::Expected("an int")),
    }
}

#[inline]
fn read_str(from: &mut Reader<'_>) -> Result<Value, WireError> {
    let text = std::str::from_utf8(from.bytes()?).map_err(|_| WireError::Expected("UTF-8 in a string"))?;
    Ok(Value::Str(text.into()))
}

/// As [`Value::Int`].
pub(super) fn write_int(int: i64, to: &mut Writer) {
    tagged(to, code::INT, int);
}

fn tagged(to: &mut Writer, code: i32, int: i64) {
    to.i32(code);
    to.i64(int);
}

/// Appends the header of [`SHORT`] or more bytes, which the caller appends next.
pub(super) fn write_bytes_head(len: usize, to: &mut Writer) {
    object_head(to, index::BYTES);
    to.u64(len as u64);
}

fn string(to: &mut Writer, (short, long): (i32, i32), bytes: &[u8]) {
    to.i32(if bytes.len() < SHORT { short } else { long });
    to.i32(long);
    to.bytes(bytes);
}

fn write_object(object: &dyn WireObject, to: &mut Writer) -> Result<(), WireError> {
    object_head(to, object.type_index());
    let end = to.len() + object.size();
    to.reserve(object.size());
    object.write(to);
    if to.len() == end {
        Ok(())
    } else {
        Err(WireError::Expected("an object to write as many bytes as its `size` says"))
    }
}

fn write_tensor(tensor: &Tensor, to: &mut Writer) -> Result<(), WireError> {
    if tensor.byte_len() > INLINE_LIMIT
        && let Some(place) = to.place_beside(tensor.byte_len())
    {
        return beside::write(tensor, place, to);
    }
    let bytes = tensor_bytes(tensor)?;
    object_head(to, index::TENSOR);
    write_dtype(tensor.dtype(), to);
    to.i32(tensor.shape().len() as i32);
    tensor.shape().iter().for_each(|dim| to.i64(*dim));
    to.u64(bytes.len() as u64);
    if bytes.len() <= INLINE_LIMIT || !to.leave_out(bytes.len()) {
        to.reserve(bytes.len());
        to.raw(&bytes);
    }
    Ok(())
}

fn read_tensor(from: &mut Reader<'_>) -> Result<Tensor, WireError> {
    let dtype = read_dtype(from)?;
    let axes = read_axes(from)?;
    let shape = from.list(axes)?;
    read_elements(dtype, shape, from)
}

fn read_object(
    outer: i32,
    depth: usize,
    from: &mut Reader<'_>,
    mut beside: Option<&mut Beside>,
) -> Result<Value, WireError> {
    let index = from.i32()?;
    if debug::is_wrapped(outer, index) {
        return debug::read(from);
    }
    let expected = match outer {
        code::SHORT_STR => index::STR,
        code::SHORT_BYTES => index::BYTES,
        other => other,
    };
    if index != expected {
        return Err(WireError::Unknown { what: "argument type", number: outer.into() });
    }
    match index {
        index::STR => read_str(from),
        index::BYTES => Ok(Value::Bytes(from.bytes()?.into())),
        index::REGISTER => {
            let number = from.i64()?;
            let id = u32::try_from(number).ok().filter(|id| *id < RegisterId::COUNT);
            id.map(|id| Value::Register(id.into())).ok_or(WireError::Unknown { what: "register", number })
        }
        index::TENSOR => Ok(Value::Tensor(read_tensor(from)?)),
        index::ARRAY | index::MAP | index::TAGGED if depth >= Value::MAX_DEPTH => Err(TOO_DEEP),
        index::ARRAY => Ok(Value::Array(read_list(depth, from, beside)?)),
        index::TAGGED => Ok(Value::Tagged(from.i32()?, read_list(depth, from, beside)?)),
        index::MAP => {
            let len = read_items(2, from)?;
            let mut item = || Value::read_nested(depth + 1, from, beside.as_deref_mut());
            let items = (0..len).map(|_| Ok((item()?, item()?)));
            Ok(Value::Map(items.collect::<Result<_, WireError>>()?))
        }
        index::TENSOR_BESIDE => Ok(Value::Tensor(beside::read(from, beside)?)),
        index => object::read(index, from),
    }
}

/// Takes the items of a list inside of `depth` arrays and maps.
fn read_list(depth: usize, from: &mut Reader<'_>, mut beside: Option<&mut Beside>) -> Result<Arc<[Value]>, WireError> {
    let len = read_items(1, from)?;
    (0..len).map(|_| Value::read_nested(depth + 1, from, beside.as_deref_mut())).collect()
}

/// Takes the number of items of an array or map, each of `values` values, and checks that the packet can contain them.
fn read_items(values: u64, from: &mut Reader<'_>) -> Result<u64, WireError> {
    /// Bytes of the shortest value.
    const SHORTEST: u64 = 4;
    let len = from.u64()?;
    match len.checked_mul(values * SHORTEST) {
        Some(bytes) if bytes <= from.left() as u64 => Ok(len),
        _ => Err(WireError::Expected("as many items as the packet has bytes for")),
    }
}
