//! The metadata of a file, as its bytes.

use std::borrow::Cow;
use std::fmt;

/// The metadata of a GGUF file: architecture and hyperparameters, tokenizer, template of chats.
///
/// It has the bytes of the file, which were checked when it was opened.
#[derive(Debug)]
pub struct Metadata {
    bytes: Box<[u8]>,
    wide: bool,
    /// Positions of the entries, in the order of their keys.
    entries: Box<[u32]>,
}

/// A value of the metadata.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the types of the format")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// A text. Zeros at its end, which some programs write, are left out, and bytes that are not UTF-8 are replaced.
    String(Cow<'a, str>),
    Array(Array<'a>),
}

/// Values of one type.
#[derive(Clone)]
pub struct Array<'a> {
    kind: u32,
    len: usize,
    elements: Bytes<'a>,
}

impl Metadata {
    /// Sorts the entries at these positions of the bytes.
    ///
    /// # Errors
    /// A key that two entries have.
    pub(super) fn new(bytes: Box<[u8]>, wide: bool, mut entries: Vec<u32>) -> Result<Self, String> {
        let key = |position: &u32| Bytes { rest: &bytes[*position as usize..], wide }.text();
        entries.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        if let Some(twice) = entries.windows(2).find(|two| key(&two[0]) == key(&two[1])) {
            return Err(key(&twice[0]).unwrap_or_default().into_owned());
        }
        Ok(Self { bytes, wide, entries: entries.into() })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let of = |position: &u32| self.at(*position).text().unwrap_or_default();
        let found = self.entries.binary_search_by(|position| (*of(position)).cmp(key)).ok()?;
        self.entry(self.entries[found]).map(|(_, value)| value)
    }

    /// The value of a key as `read` takes it, which is `expected`; none without the key.
    ///
    /// # Errors
    /// The value is something else: the reason completes a sentence about the key.
    pub fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let kind = value.kind();
        read(value).map(Some).ok_or_else(|| format!("expected {expected}, got {kind}"))
    }

    /// All keys in their order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'_, str>, Value<'_>)> {
        self.entries.iter().filter_map(|position| self.entry(*position))
    }

    fn entry(&self, position: u32) -> Option<(Cow<'_, str>, Value<'_>)> {
        let mut entry = self.at(position);
        let (key, kind) = (entry.text()?, entry.u32()?);
        Some((key, entry.value(kind)?))
    }

    fn at(&self, position: u32) -> Bytes<'_> {
        Bytes { rest: &self.bytes[position as usize..], wide: self.wide }
    }
}

impl<'a> Value<'a> {
    /// The type.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::U8(_) => "U8",
            Self::I8(_) => "I8",
            Self::U16(_) => "U16",
            Self::I16(_) => "I16",
            Self::U32(_) => "U32",
            Self::I32(_) => "I32",
            Self::U64(_) => "U64",
            Self::I64(_) => "I64",
            Self::F32(_) => "F32",
            Self::F64(_) => "F64",
            Self::Bool(_) => "Bool",
            Self::String(_) => "String",
            Self::Array(_) => "Array",
        }
    }

    /// The number of an integer of any type.
    pub fn integer(&self) -> Option<i128> {
        Some(match self {
            Self::U8(number) => (*number).into(),
            Self::I8(number) => (*number).into(),
            Self::U16(number) => (*number).into(),
            Self::I16(number) => (*number).into(),
            Self::U32(number) => (*number).into(),
            Self::I32(number) => (*number).into(),
            Self::U64(number) => (*number).into(),
            Self::I64(number) => (*number).into(),
            _ => return None,
        })
    }

    /// The number of a float.
    pub fn float(&self) -> Option<f64> {
        match self {
            Self::F32(number) => Some((*number).into()),
            Self::F64(number) => Some(*number),
            _ => None,
        }
    }

    /// The value of a flag.
    pub fn flag(&self) -> Option<bool> {
        if let Self::Bool(flag) = self { Some(*flag) } else { None }
    }

    /// A text.
    pub fn text(self) -> Option<Cow<'a, str>> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// An array.
    pub fn array(self) -> Option<Array<'a>> {
        if let Self::Array(array) = self { Some(array) } else { None }
    }
}

impl<'a> Array<'a> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values. Each text, and each array in an array, takes as long as it has bytes.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (kind, mut elements) = (self.kind, self.elements);
        (0..self.len).map_while(move |_| {
            let value = elements.value(kind)?;
            if let Value::Array(array) = &value {
                elements = array.end()?;
            }
            Some(value)
        })
    }

    /// The bytes after the array.
    fn end(&self) -> Option<Bytes<'a>> {
        let mut elements = self.elements;
        match size(self.kind) {
            Some(size) => elements.take(size.checked_mul(self.len)?).map(drop)?,
            None => {
                for _ in 0..self.len {
                    if let Value::Array(array) = elements.value(self.kind)? {
                        elements = array.end()?;
                    }
                }
            }
        }
        Some(elements)
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Bytes of a value of a type that has no length of its own.
pub(super) fn size(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | BOOL => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

pub(super) const BOOL: u32 = 7;
pub(super) const STRING: u32 = 8;
pub(super) const ARRAY: u32 = 9;

/// Bytes that were checked before. Those behind an array's length are not taken with it.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    rest: &'a [u8],
    wide: bool,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn count(&mut self) -> Option<usize> {
        if self.wide {
            self.array().map(u64::from_le_bytes)?.try_into().ok()
        } else {
            self.u32().map(|count| count as usize)
        }
    }

    fn text(&mut self) -> Option<Cow<'a, str>> {
        let len = self.count()?;
        self.take(len).map(text)
    }

    fn value(&mut self, kind: u32) -> Option<Value<'a>> {
        Some(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            BOOL => Value::Bool(self.array()? != [0]),
            STRING => Value::String(self.text()?),
            ARRAY => {
                let (kind, len) = (self.u32()?, self.count()?);
                Value::Array(Array { kind, len, elements: *self })
            }
            10 => Value::U64(u64::from_le_bytes(self.array()?)),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            _ => return None,
        })
    }
}

/// A text of the format. As in candle's reader: some programs end strings with zeros or cut them inside of a character.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..end])
}
