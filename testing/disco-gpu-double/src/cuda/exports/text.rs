//! Names and texts of codes.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_char};
use std::ptr;

use crate::cuda::abi::Code;

/// `CUresult cuGetErrorName(CUresult, const char **name)`: null for an unknown code.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: Code, name: Option<&mut *const c_char>) -> Code {
    answer(name, code.describe().map(|code| code.name))
}

/// `CUresult cuGetErrorString(CUresult, const char **text)`: null for an unknown code.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: Code, text: Option<&mut *const c_char>) -> Code {
    answer(text, code.describe().map(|code| code.text))
}

fn answer(at: Option<&mut *const c_char>, text: Option<&'static CStr>) -> Code {
    let Some(at) = at else { return Code::INVALID_VALUE };
    *at = text.map_or(ptr::null(), CStr::as_ptr);
    if text.is_some() { Code::SUCCESS } else { Code::INVALID_VALUE }
}
