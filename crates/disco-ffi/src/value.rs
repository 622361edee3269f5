//! Owned values and references of the C ABI.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::slice;
use std::sync::atomic::{Ordering, fence};

use crate::abi::{self, ByteArray, DELETE_STRONG, DELETE_WEAK, Header, TypeIndex};

/// A value of the C ABI with a reference to its object, if it is one. Stays on its thread, because objects of
/// libraries may require that.
#[repr(transparent)]
pub struct Any {
    raw: abi::Any,
    _not_send: PhantomData<*mut ()>,
}

impl Any {
    /// Nothing.
    pub const NONE: Self = Self { raw: abi::Any::NONE, _not_send: PhantomData };

    /// Takes over a value and its reference, as a callee's result.
    ///
    /// # Safety
    /// If the value is an object, the address is that of a live object, and the caller gives up one strong reference.
    pub unsafe fn from_raw(raw: abi::Any) -> Self {
        Self { raw, _not_send: PhantomData }
    }

    /// A value that is no object.
    pub(crate) fn plain(type_index: TypeIndex, content: u64) -> Self {
        debug_assert!(!type_index.is_object());
        Self { raw: abi::Any::new(type_index, content), _not_send: PhantomData }
    }

    /// A string or bytes in place; none if there are more than 7 bytes.
    pub(crate) fn small(type_index: TypeIndex, bytes: &[u8]) -> Option<Self> {
        let mut content = [0; 8];
        (bytes.len() < content.len()).then(|| {
            content[..bytes.len()].copy_from_slice(bytes);
            let content = u64::from_le_bytes(content);
            Self { raw: abi::Any { type_index, small_len: bytes.len() as u32, content }, _not_send: PhantomData }
        })
    }

    /// Copies a borrowed value, with a new reference if it is an object.
    ///
    /// # Safety
    /// If the value is an object, the address is that of a live object.
    pub unsafe fn retain(raw: &abi::Any) -> Self {
        if raw.is_object() {
            // SAFETY: the object is alive by contract.
            unsafe { (*raw.pointer::<Header>()).counts.fetch_add(STRONG, Ordering::Relaxed) };
        }
        Self { raw: *raw, _not_send: PhantomData }
    }

    /// The value as an argument of a call. It is valid as long as `self`.
    pub fn as_raw(&self) -> &abi::Any {
        &self.raw
    }

    /// Gives the value and its reference to a caller.
    pub fn into_raw(self) -> abi::Any {
        let raw = self.raw;
        mem::forget(self);
        raw
    }

    /// The kind of the value.
    pub fn type_index(&self) -> TypeIndex {
        self.raw.type_index
    }

    /// The cell of an object of this type.
    ///
    /// # Safety
    /// Objects of type `index` have a cell of type `T`.
    pub(crate) unsafe fn cell<T>(&self, index: TypeIndex) -> Option<&T> {
        let header = self.raw.pointer::<Header>();
        (self.raw.type_index == index && self.raw.is_object())
            // SAFETY: an object of this type has a `T` behind its header, by contract.
            .then(|| unsafe { &*header.wrapping_add(1).cast::<T>() })
    }

    /// The header of an object.
    pub(crate) fn header(&self) -> Option<&Header> {
        // SAFETY: the address is that of a live object, to which this value has a reference.
        self.raw.is_object().then(|| unsafe { &*self.raw.pointer::<Header>() })
    }
}

impl Clone for Any {
    fn clone(&self) -> Self {
        // SAFETY: this value has a reference to the object, which therefore is alive.
        unsafe { Self::retain(&self.raw) }
    }
}

impl Drop for Any {
    fn drop(&mut self) {
        if self.raw.is_object() {
            // SAFETY: this value has a strong reference, which it gives up here.
            unsafe { release(self.raw.pointer()) }
        }
    }
}

impl fmt::Debug for Any {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<TVM-FFI value of type {}>", self.raw.type_index.0)
    }
}

/// One strong reference in [`Header::counts`].
pub(crate) const STRONG: u64 = 1;
/// One weak reference.
pub(crate) const WEAK: u64 = 1 << 32;

/// Drops a strong reference by the protocol of `tvm/ffi/object.h`.
///
/// # Safety
/// `object` is alive, and the caller gives up one strong reference.
unsafe fn release(object: *mut Header) {
    // SAFETY: the object is alive by contract.
    let before = unsafe { (*object).counts.fetch_sub(STRONG, Ordering::Release) };
    let last_strong = before & (WEAK - 1) == STRONG;
    if !last_strong {
        return;
    }
    fence(Ordering::Acquire);
    // SAFETY: with the last strong reference gone, the weak reference of the strong ones keeps the memory.
    let deleter = unsafe { (*object).deleter };
    let delete = |flags| {
        if let Some(deleter) = deleter {
            // SAFETY: each flag is passed once, when the references of that kind are gone.
            unsafe { deleter(object.cast(), flags) }
        }
    };
    if before == STRONG + WEAK {
        return delete(DELETE_STRONG + DELETE_WEAK);
    }
    delete(DELETE_STRONG);
    // SAFETY: the memory is kept by the weak reference that is given up here.
    let before = unsafe { (*object).counts.fetch_sub(WEAK, Ordering::Release) };
    if before == WEAK {
        fence(Ordering::Acquire);
        delete(DELETE_WEAK);
    }
}

/// The bytes of a byte array.
///
/// # Safety
/// The array is valid for `'a`.
pub(crate) unsafe fn bytes<'a>(array: &ByteArray) -> &'a [u8] {
    if array.data.is_null() || array.size == 0 {
        &[]
    } else {
        // SAFETY: the array has `size` bytes at `data`, by contract.
        unsafe { slice::from_raw_parts(array.data.cast(), array.size) }
    }
}
