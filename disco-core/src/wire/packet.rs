//! Decoding of the arguments of a packet.

use std::sync::Arc;
use std::time::Duration;

use super::beside::Beside;
use super::{MappedSnapshot, PACKET_LIMIT, Reader, WireError, value};
use crate::codec::CODE_RETURN;
use crate::value::Value;

/// Number of bytes before a packet's content.
const PREFIX: usize = 8;

/// A packet whose arguments are read in order.
#[derive(Debug)]
pub struct Packet<'a> {
    args: Reader<'a>,
    /// Number of unread arguments.
    left: usize,
    /// Memory beside the packet, with its large tensors.
    beside: Option<Beside>,
}

impl<'a> Packet<'a> {
    /// Number of bytes before a packet's content; they contain its length.
    pub const PREFIX: usize = PREFIX;

    /// The length of a packet's content, from the first bytes of the packet.
    ///
    /// # Errors
    /// [`WireError::TooLarge`].
    pub fn content_len(prefix: [u8; PREFIX]) -> Result<usize, WireError> {
        match u64::from_le_bytes(prefix) {
            len if len > PACKET_LIMIT => Err(WireError::TooLarge { bytes: len, limit: PACKET_LIMIT }),
            len => Ok(len as usize),
        }
    }

    /// Reads the first packet of `bytes`, and returns it with the rest.
    ///
    /// # Errors
    /// `bytes` does not begin with a valid packet.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let mut reader = Reader::new(bytes);
        let len = Self::content_len(reader.u64()?.to_le_bytes())?;
        let content = reader.raw(len as u64)?;
        Ok((Self::read(content)?, reader.rest()))
    }

    /// A packet with this content, which begins after the length.
    ///
    /// # Errors
    /// The content does not begin with a valid header.
    #[inline]
    pub fn read(content: &'a [u8]) -> Result<Self, WireError> {
        let mut args = Reader::new(content);
        match args.i32()? {
            CODE_RETURN => {}
            code => return Err(WireError::Unknown { what: "packet code", number: code.into() }),
        }
        let count = args.i32()?;
        // An argument has at least 4 bytes, so a small packet can't cause a large allocation by its count.
        if count < 0 || count as usize > args.left() / 4 {
            return Err(WireError::Unknown { what: "number of arguments", number: count.into() });
        }
        Ok(Self { args, left: count as usize, beside: None })
    }

    /// Sets the memory with the packet's large tensors, or why this end does not have it.
    #[must_use]
    pub fn with_beside(self, beside: Option<Result<Arc<MappedSnapshot>, WireError>>) -> Self {
        Self { beside: beside.map(Beside::new), ..self }
    }

    /// Sets the memory with the packet's large tensors, such as that of a transfer.
    #[inline]
    pub(super) fn with_beside_of(self, beside: Option<Beside>) -> Self {
        Self { beside, ..self }
    }

    /// Number of unread arguments.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Leaves out the unread arguments.
    pub(super) fn skip(&mut self) {
        (self.args, self.left) = (Reader::new(&[]), 0);
    }

    /// The bytes of the unread arguments.
    pub(super) fn unread(self) -> &'a [u8] {
        self.args.rest()
    }

    /// All unread arguments, up to the end of the packet.
    ///
    /// # Errors
    /// An argument is invalid, or bytes follow the last argument.
    #[inline]
    pub fn rest(self) -> Result<Vec<Value>, WireError> {
        let mut values = Vec::new();
        self.append_rest(&mut values)?;
        Ok(values)
    }

    /// Appends all unread arguments, up to the end of the packet, to `values`.
    ///
    /// # Errors
    /// As [`Packet::rest`]; `values` may have new items.
    #[inline]
    pub(super) fn append_rest(mut self, values: &mut Vec<Value>) -> Result<(), WireError> {
        values.reserve(self.left);
        while self.left > 0 {
            self.left -= 1;
            Value::append(&mut self.args, self.beside.as_mut(), values)?;
        }
        self.end()
    }

    /// The next argument.
    #[inline]
    pub(super) fn value(&mut self) -> Result<Value, WireError> {
        let Some(left) = self.left.checked_sub(1) else { return Err(WireError::Expected("another argument")) };
        self.left = left;
        Value::read(&mut self.args, self.beside.as_mut())
    }

    /// The next argument, which must be an integer.
    #[inline]
    pub(super) fn int(&mut self) -> Result<i64, WireError> {
        let Some(left) = self.left.checked_sub(1) else { return Err(WireError::Expected("an int")) };
        self.left = left;
        value::read_int(&mut self.args)
    }

    /// The next argument, which must be a non-negative integer.
    pub(super) fn number(&mut self) -> Result<u64, WireError> {
        let number = self.int()?;
        u64::try_from(number).map_err(|_| WireError::Unknown { what: "number", number })
    }

    /// The next argument, which must be a bool.
    pub(super) fn bool(&mut self) -> Result<bool, WireError> {
        match self.value()? {
            Value::Bool(bool) => Ok(bool),
            _ => Err(WireError::Expected("a bool")),
        }
    }

    /// The next argument, which must be a time, encoded by `value::duration`.
    pub(super) fn duration(&mut self) -> Result<Duration, WireError> {
        self.number().map(Duration::from_nanos)
    }

    /// The next argument, which must be bytes.
    pub(super) fn bytes(&mut self) -> Result<Arc<[u8]>, WireError> {
        match self.value()? {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(WireError::Expected("bytes")),
        }
    }

    /// The next argument, which must be an id below 2^32.
    #[inline]
    pub(super) fn id<T: From<u32>>(&mut self) -> Result<T, WireError> {
        let id = self.int()?;
        u32::try_from(id).map(T::from).map_err(|_| WireError::Unknown { what: "id", number: id })
    }

    /// The next argument, which must be a string.
    pub(super) fn string(&mut self) -> Result<Arc<str>, WireError> {
        match self.value()? {
            Value::Str(text) => Ok(text),
            _ => Err(WireError::Expected("a string")),
        }
    }

    /// Fails if arguments or bytes are left.
    #[inline]
    pub(super) fn end(self) -> Result<(), WireError> {
        match (self.left, self.args.left()) {
            (0, 0) => Ok(()),
            (0, left) => Err(WireError::Trailing(left)),
            _ => Err(WireError::Expected("no more arguments")),
        }
    }
}
