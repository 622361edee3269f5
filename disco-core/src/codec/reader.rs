//! Checked decoding of bytes.

use super::WireError;

/// The unread rest of a packet.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    at: usize,
}

macro_rules! take {
    ($($name:ident $ty:ty),*) => {
        $(
            #[doc = concat!("Takes a little-endian `", stringify!($ty), "`.")]
            ///
            /// # Errors
            /// The packet is too short.
            #[inline]
            pub fn $name(&mut self) -> Result<$ty, WireError> {
                let (value, rest) = self.rest.split_first_chunk().ok_or_else(|| self.truncated(size_of::<$ty>() as u64))?;
                self.at += size_of::<$ty>();
                self.rest = rest;
                Ok(<$ty>::from_le_bytes(*value))
            }
        )*
    };
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, at: 0 }
    }

    take!(u8 u8, u16 u16, u32 u32, i32 i32, u64 u64, i64 i64, f64 f64);

    /// The next little-endian `i32`, which is not taken; `None` if the packet is too short.
    #[inline]
    pub(crate) fn peek_i32(&self) -> Option<i32> {
        self.rest.first_chunk().map(|value| i32::from_le_bytes(*value))
    }

    /// Takes `len` bytes.
    ///
    /// # Errors
    /// Fewer bytes are left.
    #[inline]
    pub fn raw(&mut self, len: u64) -> Result<&'a [u8], WireError> {
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let (bytes, rest) = split.ok_or_else(|| self.truncated(len))?;
        self.at += bytes.len();
        self.rest = rest;
        Ok(bytes)
    }

    /// Takes a length and that number of bytes.
    ///
    /// # Errors
    /// Fewer bytes are left.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u64()?;
        self.raw(len)
    }

    /// Takes `count` integers. Allocates only after it has checked that the packet contains them.
    ///
    /// # Errors
    /// Fewer integers are left.
    pub fn list(&mut self, count: u64) -> Result<Vec<i64>, WireError> {
        let bytes = self.raw(count.checked_mul(8).ok_or_else(|| self.truncated(count))?)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|word| i64::from_le_bytes(*word)).collect())
    }

    /// Number of unread bytes.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The unread bytes.
    #[inline]
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    #[cold]
    fn truncated(&self, wanted: u64) -> WireError {
        WireError::Truncated { at: self.at, wanted, left: self.rest.len() }
    }
}
