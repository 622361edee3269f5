//! Names and texts of codes, and the last error of a thread.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_char;

use crate::codes::Description;
use crate::hip::abi::Code;
use crate::hip::last;

/// `hipError_t hipGetLastError(void)`: the last error of this thread since its last call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetLastError() -> Code {
    last::take()
}

/// `const char *hipGetErrorString(hipError_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(code: Code) -> *const c_char {
    describe(code).text.as_ptr()
}

/// The name and text of a code; those of `hipErrorUnknown` for an unknown code.
fn describe(code: Code) -> Description {
    code.describe().unwrap_or(Description { name: c"hipErrorUnknown", text: c"unknown error" })
}
