//! Bytes, appended.

use std::sync::Arc;

use super::{CODE_RETURN, PACKET_LIMIT, WireError};

/// A buffer above this is not kept.
const LARGE: usize = 1 << 20;

/// A buffer that integers, floats and strings are appended to.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

macro_rules! put {
    ($($name:ident $ty:ty),*) => {
        $(
            #[doc = concat!("Appends a little-endian `", stringify!($ty), "`.")]
            pub fn $name(&mut self, value: $ty) {
                self.0.extend_from_slice(&value.to_le_bytes());
            }
        )*
    };
}

impl Writer {
    put!(u8 u8, u16 u16, u32 u32, i32 i32, u64 u64, i64 i64, f64 f64);

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a length and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.raw(bytes);
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Makes room for `size` more bytes.
    pub(crate) fn reserve(&mut self, size: usize) {
        self.0.reserve(size);
    }

    /// What was written; goes on with nothing, in the same memory.
    pub fn take(&mut self) -> Arc<[u8]> {
        let bytes = self.0.as_slice().into();
        match self.0.capacity() > LARGE {
            // It does not take its room for ever.
            true => self.0 = Vec::new(),
            false => self.0.clear(),
        }
        bytes
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Appends one packet of `count` arguments, which `args` writes.
    pub(crate) fn packet(
        &mut self,
        count: usize,
        args: impl FnOnce(&mut Self) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let start = self.0.len();
        self.u64(0);
        self.i32(CODE_RETURN);
        self.i32(
            i32::try_from(count).map_err(|_| WireError::TooLarge { bytes: count as u64, limit: i32::MAX as u64 })?,
        );
        args(self)?;
        let length = (self.0.len() - start - 8) as u64;
        if length > PACKET_LIMIT {
            return Err(WireError::TooLarge { bytes: length, limit: PACKET_LIMIT });
        }
        self.0[start..start + 8].copy_from_slice(&length.to_le_bytes());
        Ok(())
    }
}
