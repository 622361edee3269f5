//! Debug objects: TVM's encoding of the object that `DebugSetRegister` sends or `DebugGetFromRemote` fetches.
//!
//! ```text
//! argument  i32 type of the wrapper, u32 0, u64 length, text
//! text      graph '0'  or  base64 of a saved tensor '1'
//!
//! graph     {"root_index":0,"nodes":[{"type":"ffi.String","data":"12345678"}]}
//!           type        data              type                 data
//!           ffi.String  string            int, float, bool     number, true or false ┐ read,
//!           ffi.Bytes   string of base64  None                 none                  ┘ never written
//!           ffi.Shape   list of integers
//!
//! tensor    u64 0xdd5e40f096b4a13f, u64 0, i32 1 (CPU), i32 0, i32 axes, dtype, i64 extents, u64 length, bytes
//! ```
//!
//! Base64 uses the standard alphabet with padding. Values above [`INLINE_LIMIT`], plain values, and strings or bytes
//! shorter than 8 bytes are written without a wrapper; a worker of TVM returns even a short string wrapped. TVM has no
//! debug object for Disco's registers and registered objects, so they keep their own encoding, as arrays and maps do.
//! Arrays and maps as debug objects are refused.
//!
//! Only the root of a graph is parsed, so a hostile graph takes at most a few times the memory of its text.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::parts::{SHORT, read_axes, read_dtype, read_elements, tensor_bytes, write_dtype};
use super::{INLINE_LIMIT, Reader, WireError, Writer};
use crate::device::DeviceKind;
use crate::tensor::Tensor;
use crate::value::Value;

/// Type index that TVM 0.27 writes for its wrapper. TVM assigns the index when it is loaded and only checks that it is
/// that of an object, so any such index works. This one makes packets equal to the capture in `tests/data`.
const WRAPPER: i32 = 187;

/// Type index of the object inside the wrapper.
const INDEX: i32 = 0;

/// Type names of graph nodes.
mod node {
    pub(super) const STRING: &str = "ffi.String";
    pub(super) const BYTES: &str = "ffi.Bytes";
    pub(super) const SHAPE: &str = "ffi.Shape";
    pub(super) const INT: &str = "int";
    pub(super) const FLOAT: &str = "float";
    pub(super) const BOOL: &str = "bool";
    pub(super) const NONE: &str = "None";
}

/// `kTVMNDArrayMagic`, the first field of a saved tensor.
const MAGIC: u64 = 0xdd5e_40f0_96b4_a13f;

/// Appends a value as TVM's debug commands do: an object is wrapped, any other value is written as a plain argument.
pub(super) fn write(value: &Value, to: &mut Writer) -> Result<(), WireError> {
    if value.payload_len() > INLINE_LIMIT {
        // Base64 would take a third more space and several copies.
        value.write(to)
    } else {
        write_wrapped(value, to)
    }
}

/// As [`write`], with large objects wrapped, too: TVM reads them in no other form.
pub(super) fn write_wrapped(value: &Value, to: &mut Writer) -> Result<(), WireError> {
    let text = match value {
        Value::Str(text) if text.len() >= SHORT => graph(node::STRING, &quote(text)),
        Value::Bytes(bytes) if bytes.len() >= SHORT => graph(node::BYTES, &quote(&BASE64.encode(bytes))),
        Value::Shape(shape) => {
            let extents: Vec<String> = shape.iter().map(i64::to_string).collect();
            graph(node::SHAPE, &format!("[{}]", extents.join(",")))
        }
        Value::Tensor(tensor) => save(tensor)?,
        other => return other.write(to),
    };
    to.i32(WRAPPER);
    to.i32(INDEX);
    to.bytes(text.as_bytes());
    Ok(())
}

/// Whether an argument with these two type indices is a debug object. TVM's object types start at 64; it sends
/// functions (68) and modules (73) as handles.
pub(super) fn is_wrapped(outer: i32, index: i32) -> bool {
    index == INDEX && outer >= 64 && outer != 68 && outer != 73
}

/// Reads the content of a debug object, which follows the two type indices.
pub(super) fn read(from: &mut Reader<'_>) -> Result<Value, WireError> {
    match from.bytes()?.split_last() {
        Some((b'0', graph)) => read_graph(graph),
        Some((b'1', tensor)) => load(tensor).map(Value::Tensor),
        _ => Err(WireError::Expected("0 or 1 at the end of a debug object")),
    }
}

fn graph(kind: &str, data: &str) -> String {
    format!(r#"{{"root_index":0,"nodes":[{{"type":"{kind}","data":{data}}}]}}0"#)
}

/// A JSON string as TVM writes it: `/` and DEL are escaped too, and non-ASCII characters are not.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' | '/' => quoted.extend(['\\', char]),
            '\u{8}' => quoted.push_str("\\b"),
            '\t' => quoted.push_str("\\t"),
            '\n' => quoted.push_str("\\n"),
            '\u{c}' => quoted.push_str("\\f"),
            '\r' => quoted.push_str("\\r"),
            _ if char.is_ascii_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(char))),
            _ => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

#[derive(Deserialize)]
struct Graph<'a> {
    root_index: usize,
    #[serde(borrow)]
    nodes: Vec<Node<'a>>,
}

#[derive(Deserialize)]
struct Node<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

impl<'a> Node<'a> {
    fn data<T: Deserialize<'a>>(&self) -> Result<T, WireError> {
        let data = self.data.and_then(|data| serde_json::from_str(data.get()).ok());
        data.ok_or(WireError::Expected("data of the node's type in a debug object"))
    }
}

fn read_graph(text: &[u8]) -> Result<Value, WireError> {
    let graph: Graph<'_> =
        serde_json::from_slice(text).map_err(|_| WireError::Expected("a JSON graph in a debug object"))?;
    let root = graph.nodes.get(graph.root_index).ok_or(WireError::Expected("a root in a debug object's graph"))?;
    match &*root.kind {
        node::STRING => root.data::<String>().map(Value::from),
        node::BYTES => decode(root.data::<String>()?.as_bytes()).map(Value::from),
        node::SHAPE => root.data::<Vec<i64>>().map(|extents| Value::Shape(extents.into())),
        node::INT => root.data().map(Value::Int),
        node::FLOAT => root.data().map(Value::Float),
        node::BOOL => root.data().map(Value::Bool),
        node::NONE => Ok(Value::None),
        other => Err(WireError::DebugType(other.chars().take(64).collect())),
    }
}

fn decode(base64: &[u8]) -> Result<Vec<u8>, WireError> {
    BASE64.decode(base64).map_err(|_| WireError::Expected("base64 in a debug object"))
}

fn save(tensor: &Tensor) -> Result<String, WireError> {
    let bytes = tensor_bytes(tensor)?;
    let mut to = Writer::default();
    to.u64(MAGIC);
    to.u64(0);
    to.i32(DeviceKind::Cpu.dlpack());
    to.i32(0);
    to.i32(tensor.shape().len() as i32);
    write_dtype(tensor.dtype(), &mut to);
    tensor.shape().iter().for_each(|extent| to.i64(*extent));
    to.bytes(&bytes);
    Ok(BASE64.encode(to.into_bytes()) + "1")
}

fn load(text: &[u8]) -> Result<Tensor, WireError> {
    let saved = decode(text)?;
    let mut from = Reader::new(&saved);
    if from.u64()? != MAGIC {
        return Err(WireError::Expected("a saved tensor's magic number in a debug object"));
    }
    // A reserved field.
    from.u64()?;
    if from.i32()? != DeviceKind::Cpu.dlpack() {
        return Err(WireError::Expected("a saved tensor on the CPU in a debug object"));
    }
    from.i32()?;
    let axes = read_axes(&mut from)?;
    let dtype = read_dtype(&mut from)?;
    let shape = from.list(axes)?;
    let tensor = read_elements(dtype, shape, &mut from)?;
    match from.left() {
        0 => Ok(tensor),
        _ => Err(WireError::Expected("nothing after a saved tensor's elements")),
    }
}
