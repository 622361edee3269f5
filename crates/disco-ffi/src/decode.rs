//! Values of the C ABI as values of Disco.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::slice;
use std::sync::{Arc, Weak};

use disco_core::function::Function;
use disco_core::tensor::{DLTensor, Storage};
use disco_core::{DType, Device, DeviceKind, Object, Opaque, Shape, Tensor, Value};

use crate::abi::{self, ByteArray, Header, SeqCell, ShapeCell, TypeIndex};
use crate::foreign::{ForeignObject, Keep};
use crate::heap;
use crate::library::TvmFfi;
use crate::raw;
use crate::value::{Any, bytes};

/// Converts values of one library.
#[derive(Clone, Copy)]
pub(crate) struct Decoder<'a> {
    /// Keeps the library of the values in the process.
    pub(crate) keep: &'a Keep,
    /// Makes a worker function of a function object.
    pub(crate) import: fn(Any, &Keep) -> Function,
    /// Number of arrays and maps around the value.
    depth: usize,
}

/// Keeps a tensor object and the library that has its deleter.
struct TensorOwner {
    _any: Any,
    _keep: Keep,
}

// SAFETY: the counts of an object are atomic, and DLPack permits to drop a tensor on any thread.
unsafe impl Send for TensorOwner {}
// SAFETY: no method accesses the object through a shared reference.
unsafe impl Sync for TensorOwner {}

impl<'a> Decoder<'a> {
    pub(crate) fn new(keep: &'a Keep, import: fn(Any, &Keep) -> Function) -> Self {
        Self { keep, import, depth: 0 }
    }

    /// Converts a result.
    ///
    /// # Errors
    /// The kind of a value that is no valid result.
    pub(crate) fn owned(self, any: Any) -> Result<Object, String> {
        let raw = any.as_raw();
        Ok(Object::Value(match any.type_index() {
            TypeIndex::NONE => Value::None,
            TypeIndex::INT => Value::Int(raw.content as i64),
            TypeIndex::BOOL => Value::Bool(raw.content != 0),
            TypeIndex::FLOAT => Value::Float(f64::from_bits(raw.content)),
            TypeIndex::DTYPE => Value::DType(dtype(raw.content)?),
            TypeIndex::DEVICE => Value::Device(device(raw.content)?),
            TypeIndex::SMALL_STR => Value::from(text(small(raw)?)?),
            TypeIndex::SMALL_BYTES => Value::from(small(raw)?),
            TypeIndex::POINTER => return Ok(self.foreign(any)),
            index if !index.is_object() => return Err(format!("a value of type {}, which no result has", index.0)),
            index => {
                return self.object(index, checked(any)?);
            }
        }))
    }

    fn object(self, index: TypeIndex, any: Any) -> Result<Object, String> {
        let is_nested = matches!(index, TypeIndex::ARRAY | TypeIndex::LIST | TypeIndex::MAP | TypeIndex::DICT);
        if is_nested && self.depth == Value::MAX_DEPTH {
            return Err(format!("arrays and maps that are nested more than {} deep", Value::MAX_DEPTH));
        }
        Ok(Object::Value(match index {
            TypeIndex::STR => {
                // SAFETY: strings have a byte array.
                let cell = unsafe { any.cell::<ByteArray>(index) };
                Value::from(text(cell.map_or(&[], content))?)
            }
            TypeIndex::BYTES => {
                // SAFETY: bytes have a byte array.
                let cell = unsafe { any.cell::<ByteArray>(index) };
                Value::from(cell.map_or(&[][..], content))
            }
            TypeIndex::SHAPE => {
                // SAFETY: shapes have a shape cell.
                let cell = unsafe { any.cell::<ShapeCell>(index) };
                Value::Shape(Shape::from(cell.map_or(&[][..], extents)))
            }
            TypeIndex::TENSOR => Value::Tensor(self.tensor(any)?),
            TypeIndex::FUNCTION => return Ok(Object::Function((self.import)(any, self.keep))),
            TypeIndex::ARRAY | TypeIndex::LIST => {
                let items = items(&any).iter().map(|item| self.item(item)).collect::<Result<Option<Arc<[_]>>, _>>()?;
                return Ok(items.map_or_else(|| self.foreign(any), |items| Object::Value(Value::Array(items))));
            }
            TypeIndex::MAP | TypeIndex::DICT => {
                let pairs = pairs(&any)?;
                let pair = |(key, item): &(Any, Any)| {
                    let pair = self.item(key.as_raw())?.zip(self.item(item.as_raw())?);
                    Ok::<_, String>(pair)
                };
                let pairs = pairs.iter().map(pair).collect::<Result<Option<Arc<[_]>>, _>>()?;
                return Ok(pairs.map_or_else(|| self.foreign(any), |pairs| Object::Value(Value::Map(pairs))));
            }
            _ => return Ok(self.foreign(any)),
        }))
    }

    fn foreign(self, any: Any) -> Object {
        Object::Opaque(Opaque::new(ForeignObject::new(any, self.keep.clone())))
    }

    /// An item of an array; none if it is no [`Value`], such as a function.
    fn item(self, raw: &abi::Any) -> Result<Option<Value>, String> {
        // SAFETY: the array has a reference to its item.
        let item = unsafe { Any::retain(raw) };
        Ok(match (Decoder { depth: self.depth + 1, ..self }).owned(item)? {
            Object::Value(value) => Some(value),
            _ => None,
        })
    }

    fn tensor(self, any: Any) -> Result<Tensor, String> {
        if let Some(tensor) = heap::as_tensor(&any) {
            return Ok(tensor.clone());
        }
        // SAFETY: tensors have a `DLTensor`.
        let dl = unsafe { any.cell::<DLTensor>(TypeIndex::TENSOR) }.copied().ok_or("no tensor")?;
        let owner = TensorOwner { _any: any, _keep: self.keep.clone() };
        // SAFETY: the object keeps the elements, and the owner keeps the object. Libraries share tensors with the
        // program that calls them by the rules of DLPack.
        unsafe { Tensor::from_dl_tensor(&dl, Box::new(owner)) }.map_err(|error| format!("a tensor: {error}"))
    }

    /// Converts an argument that the caller lends. The storage of a tensor without an owner is appended to `lent`: it
    /// is invalid after the call.
    ///
    /// # Errors
    /// The kind of a value that is no valid argument.
    ///
    /// # Safety
    /// The value is valid during the call.
    pub(crate) unsafe fn lent(self, raw: &abi::Any, lent: &mut Vec<Weak<Storage>>) -> Result<Object, String> {
        let is_null = raw.content == 0;
        match raw.type_index {
            TypeIndex::DL_TENSOR | TypeIndex::RAW_STR | TypeIndex::BYTE_ARRAY | TypeIndex::RVALUE if is_null => {
                Err(format!("a null pointer of type {}", raw.type_index.0))
            }
            TypeIndex::DL_TENSOR => {
                // SAFETY: the pointer is valid during the call by contract.
                let dl = unsafe { &*raw.pointer::<DLTensor>() };
                // SAFETY: the caller of this function ends the process if the storage outlives the call.
                let tensor = unsafe { Tensor::from_dl_tensor(dl, Box::new(())) };
                let tensor = tensor.map_err(|error| format!("a tensor: {error}"))?;
                lent.push(Arc::downgrade(tensor.storage()));
                Ok(Value::Tensor(tensor).into())
            }
            TypeIndex::RAW_STR => {
                // SAFETY: the pointer is valid and the string ends with a zero byte, by contract.
                let string = unsafe { CStr::from_ptr(raw.pointer()) };
                Ok(Value::from(text(string.to_bytes())?).into())
            }
            TypeIndex::BYTE_ARRAY => {
                // SAFETY: the pointer is valid by contract.
                let array = unsafe { &*raw.pointer::<ByteArray>() };
                Ok(Value::from(content(array)).into())
            }
            TypeIndex::RVALUE => {
                // SAFETY: the pointer is that of a variable with an object, by contract.
                let object = unsafe { *raw.pointer::<*mut Header>() };
                if object.is_null() {
                    return Ok(Value::None.into());
                }
                // SAFETY: the object is alive by contract.
                let index = unsafe { (*object).type_index };
                // SAFETY: the object is alive by contract.
                self.owned(unsafe { Any::retain(&abi::Any::of_pointer(index, object)) })
            }
            // SAFETY: passed on.
            _ => self.owned(unsafe { Any::retain(raw) }),
        }
    }
}

/// Refuses objects that can't be such: at a null or misaligned address, or with a type that the header does not confirm.
fn checked(any: Any) -> Result<Any, String> {
    let (index, address) = (any.type_index(), any.as_raw().content);
    if address == 0 || !address.is_multiple_of(align_of::<Header>() as u64) {
        // There is no object whose reference could be dropped.
        _ = any.into_raw();
        return Err(format!("an object of type {} at the address {address:#x}", index.0));
    }
    let found = any.header().map_or(TypeIndex::NONE, |header| header.type_index);
    if found == index {
        Ok(any)
    } else {
        Err(format!("a value of type {} whose object says that it has type {}", index.0, found.0))
    }
}

fn small(raw: &abi::Any) -> Result<&[u8], String> {
    let bytes = bytes_of(&raw.content);
    bytes.get(..raw.small_len as usize).ok_or_else(|| format!("a small string of {} bytes", raw.small_len))
}

/// The bytes of a content, in memory.
fn bytes_of(content: &u64) -> &[u8; 8] {
    // SAFETY: the content has 8 initialised bytes, and bytes have no alignment.
    unsafe { &*std::ptr::from_ref(content).cast() }
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| format!("a string that is not UTF-8 ({error})"))
}

fn content(cell: &ByteArray) -> &[u8] {
    // SAFETY: the array of a live object, or of an argument, is valid.
    unsafe { bytes(cell) }
}

fn extents(cell: &ShapeCell) -> &[i64] {
    match cell.size {
        0 => &[],
        // SAFETY: the cell of a live shape has `size` extents.
        size => unsafe { slice::from_raw_parts(cell.data, size) },
    }
}

/// The items of an array or list.
fn items(any: &Any) -> &[abi::Any] {
    // SAFETY: arrays and lists have a sequence cell.
    match unsafe { any.cell::<SeqCell>(any.type_index()) } {
        // SAFETY: the cell of a live array has `size` items.
        Some(cell) if cell.size > 0 => unsafe { slice::from_raw_parts(cell.data, cell.size as usize) },
        _ => &[],
    }
}

/// Commands of the iterators of libtvm_ffi.
mod iterator {
    pub(super) const KEY: u64 = 0;
    pub(super) const VALUE: u64 = 1;
    pub(super) const NEXT: u64 = 2;
}

/// The pairs of a map, in its order. The layout is private to libtvm_ffi, which therefore iterates.
fn pairs(any: &Any) -> Result<Vec<(Any, Any)>, String> {
    let kind = if any.type_index() == TypeIndex::MAP { "Map" } else { "Dict" };
    let tvm = TvmFfi::get().map_err(|error| format!("a map, which only libtvm_ffi can read: {error}"))?;
    let call = |name: &str| {
        let name = format!("ffi.{kind}{name}");
        let function = tvm.global(&name).ok_or_else(|| format!("a map, but libtvm_ffi has no function `{name}`"))?;
        raw::call(&function, slice::from_ref(any)).map_err(|raised| format!("a map: {name}: {raised}"))
    };
    let len = call("Size")?.as_raw().content;
    let mut pairs = Vec::new();
    if len == 0 {
        return Ok(pairs);
    }
    let iterator = call("ForwardIterFunctor")?;
    let step = |command: u64| {
        let command = Any::plain(TypeIndex::INT, command);
        raw::call(&iterator, &[command]).map_err(|raised| format!("a map: {raised}"))
    };
    for at in 0..len {
        if at > 0 {
            step(iterator::NEXT)?;
        }
        pairs.push((step(iterator::KEY)?, step(iterator::VALUE)?));
    }
    Ok(pairs)
}

fn dtype(content: u64) -> Result<DType, String> {
    let [code, bits, low, high, ..] = content.to_le_bytes();
    let lanes = u16::from_le_bytes([low, high]);
    DType::from_dlpack(code, bits, lanes)
        .ok_or_else(|| format!("a dtype (code {code}, {bits} bits, {lanes} lanes) that Disco does not know"))
}

fn device(content: u64) -> Result<Device, String> {
    let (kind, ordinal) = (content as u32 as i32, (content >> 32) as i32);
    let known = DeviceKind::from_dlpack(kind);
    known
        .map(|kind| Device::new(kind, ordinal))
        .ok_or_else(|| format!("a device of kind {kind}, which Disco does not know"))
}
