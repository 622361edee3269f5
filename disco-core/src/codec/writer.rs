//! Encoding into a growing buffer.

use std::sync::Arc;

use super::{CODE_RETURN, PACKET_LIMIT, WireError};

/// Largest capacity, in bytes, that [`Writer::take`] keeps for the next packet.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// A buffer to which integers, floats and strings are appended.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    /// Bytes assigned so far in the memory beside the packet, which holds large values; none without such memory.
    beside: Option<usize>,
    /// Position in the buffer and length of each value that was left out; none if large values are written in place.
    left_out: Option<Vec<(usize, usize)>>,
}

/// Alignment of values in memory beside the packet.
const BESIDE_ALIGN: usize = 128;

macro_rules! put {
    ($($name:ident $ty:ty),*) => {
        $(
            #[doc = concat!("Appends a little-endian `", stringify!($ty), "`.")]
            #[inline]
            pub fn $name(&mut self, value: $ty) {
                self.bytes.extend_from_slice(&value.to_le_bytes());
            }
        )*
    };
}

/// Initial capacity, in bytes, of a buffer for a frame: most calls are shorter.
const FRAME_BYTES: usize = 192;

impl Writer {
    /// A buffer for a frame.
    pub(crate) fn for_frame() -> Self {
        Self { bytes: Vec::with_capacity(FRAME_BYTES), ..Self::default() }
    }

    /// A buffer for packets whose large values lie in separate memory beside the packet.
    pub(crate) fn with_memory_beside() -> Self {
        Self { beside: Some(0), ..Self::default() }
    }

    /// A buffer for packets without the bytes of large values, which the caller [leaves out](Self::leave_out).
    pub(crate) fn leaving_out() -> Self {
        Self { left_out: Some(Vec::new()), ..Self::default() }
    }

    /// Records that `len` bytes belong here but are not written. Returns false, and records nothing, if this buffer
    /// does not leave bytes out.
    pub(crate) fn leave_out(&mut self, len: usize) -> bool {
        let Some(left_out) = &mut self.left_out else { return false };
        left_out.push((self.bytes.len(), len));
        true
    }

    /// The bytes, and the position and length of each value that was left out.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<(usize, usize)>) {
        (self.bytes, self.left_out.unwrap_or_default())
    }

    /// Number of bytes left out so far.
    fn bytes_left_out(&self) -> usize {
        self.left_out.iter().flatten().map(|(_, len)| len).sum()
    }

    /// Assigns a value of `len` bytes an offset in the memory beside the packet; none without such memory.
    pub(crate) fn place_beside(&mut self, len: usize) -> Option<usize> {
        let place = self.beside?.next_multiple_of(BESIDE_ALIGN);
        self.beside = Some(place + len);
        Some(place)
    }

    /// Size of the memory beside the packet in bytes.
    pub(crate) fn bytes_beside(&self) -> usize {
        self.beside.unwrap_or(0)
    }

    put!(u8 u8, u16 u16, u32 u32, i32 i32, u64 u64, i64 i64, f64 f64);

    /// Appends bytes without a length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a length and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.raw(bytes);
    }

    /// Number of bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Reserves capacity for `size` more bytes.
    pub(crate) fn reserve(&mut self, size: usize) {
        self.bytes.reserve(size);
    }

    /// The bytes written so far. The writer is empty afterwards and reuses its memory.
    pub fn take(&mut self) -> Arc<[u8]> {
        let bytes = self.bytes.as_slice().into();
        if self.bytes.capacity() > MAX_KEPT_BYTES {
            self.bytes = Vec::new()
        } else {
            self.bytes.clear()
        }
        bytes
    }

    /// The bytes written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends a packet of `count` arguments, which `args` writes.
    pub(crate) fn packet(
        &mut self,
        count: usize,
        args: impl FnOnce(&mut Self) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let (start, left_out) = (self.bytes.len(), self.bytes_left_out());
        self.u64(0);
        self.i32(CODE_RETURN);
        self.i32(
            i32::try_from(count).map_err(|_| WireError::TooLarge { bytes: count as u64, limit: i32::MAX as u64 })?,
        );
        args(self)?;
        let length = (self.bytes.len() - start - 8 + self.bytes_left_out() - left_out) as u64;
        if length > PACKET_LIMIT {
            return Err(WireError::TooLarge { bytes: length, limit: PACKET_LIMIT });
        }
        self.bytes[start..start + 8].copy_from_slice(&length.to_le_bytes());
        Ok(())
    }
}
