//! Layouts and numbers of the TVM-FFI C ABI, version 0.1 (`tvm/ffi/c_api.h` of the package `apache-tvm-ffi`). DLPack's
//! structs are those of [`disco_core::tensor`].
//!
//! ```text
//! Any     i32 type index, u32 length of a small string, 8 bytes of content or the address of an object
//! object  u64 counts (strong in the lower half, weak in the upper), i32 type index, u32 0, deleter; then its cell
//! ```

#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// The major and minor version of the ABI that this crate knows.
pub const VERSION: (u32, u32) = (0, 1);

/// The type of a value (`TVMFFITypeIndex`). Numbers from [`TypeIndex::OBJECT`] are objects, and those from
/// [`TypeIndex::DYNAMIC`] are assigned while the process runs.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeIndex(pub i32);

impl TypeIndex {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// `int64_t`.
    pub const INT: Self = Self(1);
    /// 0 or 1 as `int64_t`.
    pub const BOOL: Self = Self(2);
    /// `double`.
    pub const FLOAT: Self = Self(3);
    /// `void *` without an owner.
    pub const POINTER: Self = Self(4);
    /// `DLDataType`.
    pub const DTYPE: Self = Self(5);
    /// `DLDevice`.
    pub const DEVICE: Self = Self(6);
    /// `DLTensor *`, borrowed from the caller.
    pub const DL_TENSOR: Self = Self(7);
    /// `const char *`, borrowed from the caller.
    pub const RAW_STR: Self = Self(8);
    /// `TVMFFIByteArray *`, borrowed from the caller.
    pub const BYTE_ARRAY: Self = Self(9);
    /// The address of a variable with an object that the callee may take over.
    pub const RVALUE: Self = Self(10);
    /// A string of up to 7 bytes, in place.
    pub const SMALL_STR: Self = Self(11);
    /// Up to 7 bytes, in place.
    pub const SMALL_BYTES: Self = Self(12);
    /// The first object type.
    pub const OBJECT: Self = Self(64);
    /// A string object; cell: [`ByteArray`].
    pub const STR: Self = Self(65);
    /// Bytes; cell: [`ByteArray`].
    pub const BYTES: Self = Self(66);
    /// An error; cell: [`ErrorCell`].
    pub const ERROR: Self = Self(67);
    /// A function; cell: [`FunctionCell`].
    pub const FUNCTION: Self = Self(68);
    /// A shape; cell: [`ShapeCell`].
    pub const SHAPE: Self = Self(69);
    /// A tensor; cell: `DLTensor`.
    pub const TENSOR: Self = Self(70);
    /// An array; cell: [`SeqCell`].
    pub const ARRAY: Self = Self(71);
    /// A map. Its cell is private to libtvm_ffi.
    pub const MAP: Self = Self(72);
    /// A module. Its cell is private to libtvm_ffi.
    pub const MODULE: Self = Self(73);
    /// An array that may change; cell: [`SeqCell`].
    pub const LIST: Self = Self(75);
    /// A map that may change. Its cell is private to libtvm_ffi.
    pub const DICT: Self = Self(76);
    /// The first type that is assigned while the process runs.
    pub const DYNAMIC: Self = Self(128);

    /// Whether values of this type are reference-counted objects.
    pub const fn is_object(self) -> bool {
        self.0 >= Self::OBJECT.0
    }
}

/// `TVMFFIAny`: a value. Whether it owns its object depends on its place: arguments are borrowed, results are owned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Any {
    /// Type of the content.
    pub type_index: TypeIndex,
    /// Length of a small string or small bytes; 0 for other types.
    pub small_len: u32,
    /// The content, or an address.
    pub content: u64,
}

impl Any {
    /// Nothing. Result variables have this value before each call.
    pub const NONE: Self = Self::new(TypeIndex::NONE, 0);

    /// A value from its type and content.
    pub const fn new(type_index: TypeIndex, content: u64) -> Self {
        Self { type_index, small_len: 0, content }
    }

    /// A value whose content is an address.
    pub fn of_pointer<T>(type_index: TypeIndex, pointer: *const T) -> Self {
        Self::new(type_index, pointer.expose_provenance() as u64)
    }

    /// The content as an address.
    pub fn pointer<T>(&self) -> *mut T {
        ptr::with_exposed_provenance_mut(self.content as usize)
    }

    /// Whether this is an object with an address.
    pub fn is_object(&self) -> bool {
        self.type_index.is_object() && self.content != 0
    }
}

/// `TVMFFIObject`: the header of each object.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// Strong references in the lower 32 bits; weak references in the upper, plus one while there are strong ones.
    pub counts: std::sync::atomic::AtomicU64,
    /// The object's type.
    pub type_index: TypeIndex,
    /// 0.
    pub padding: u32,
    /// Drops the content ([`DELETE_STRONG`]), frees the memory ([`DELETE_WEAK`]) or does both.
    pub deleter: Option<Deleter>,
}

/// The deleter of an object: the object, and a sum of [`DELETE_STRONG`] and [`DELETE_WEAK`].
pub type Deleter = unsafe extern "C" fn(*mut c_void, c_int);

/// Flag of a [`Deleter`]: the last strong reference is gone.
pub const DELETE_STRONG: c_int = 1;
/// Flag of a [`Deleter`]: the last weak reference is gone.
pub const DELETE_WEAK: c_int = 2;

/// `TVMFFIByteArray`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ByteArray {
    /// The first byte; may be null if the size is 0.
    pub data: *const c_char,
    /// Number of bytes.
    pub size: usize,
}

/// `TVMFFIShapeCell`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShapeCell {
    /// The extents.
    pub data: *const i64,
    /// Number of extents.
    pub size: usize,
}

/// `TVMFFISeqCell`: the items of an array or list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SeqCell {
    /// The items, which the array owns.
    pub data: *mut Any,
    /// Number of items.
    pub size: i64,
    /// Number of items that there is room for.
    pub capacity: i64,
    /// Frees `data`; null if it lies in the array's own memory.
    pub data_deleter: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// `TVMFFIErrorCell`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorCell {
    /// The kind, such as `ValueError`.
    pub kind: ByteArray,
    /// The text.
    pub message: ByteArray,
    /// Lines of the stack, innermost last.
    pub backtrace: ByteArray,
    /// Replaces (mode 0) or extends (mode 1) the backtrace.
    pub update_backtrace: unsafe extern "C" fn(*mut c_void, *const ByteArray, c_int),
    /// The error that this one followed, or null.
    pub cause: *mut c_void,
    /// An object with more details, or null.
    pub extra: *mut c_void,
}

/// `TVMFFISafeCallType`: self, arguments, their number, and the result. Returns 0, or another number after an error.
/// C++ exceptions may leave it.
pub type SafeCall = unsafe extern "C-unwind" fn(*mut c_void, *const Any, c_int, *mut Any) -> c_int;

/// `TVMFFIFunctionCell`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FunctionCell {
    /// Calls the function; `self` is the function object.
    pub safe_call: SafeCall,
    /// C++'s entry, or null.
    pub cpp_call: *mut c_void,
}

/// `TVMFFIVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Changes with the layouts.
    pub major: u32,
    /// Changes with the layouts while `major` is 0.
    pub minor: u32,
    /// Does not change the layouts.
    pub patch: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_c_header() {
        assert_eq!((size_of::<Any>(), size_of::<Header>(), size_of::<SeqCell>()), (16, 24, 32));
        assert_eq!((size_of::<ErrorCell>(), size_of::<FunctionCell>(), size_of::<ShapeCell>()), (72, 16, 16));
    }

    #[test]
    fn an_address_survives_as_content() {
        let number = 7u8;
        let any = Any::of_pointer(TypeIndex::OBJECT, &raw const number);
        assert_eq!(any.pointer::<u8>().cast_const(), &raw const number);
    }
}
