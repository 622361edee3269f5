//! Calls of function objects, without conversions.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use crate::abi::{self, FunctionCell, SafeCall, TypeIndex};
use crate::library::TvmFfi;
use crate::raised::Raised;
use crate::value::Any;

/// Calls a function object.
///
/// # Errors
/// The function raises an error, or `function` is none.
pub(crate) fn call(function: &Any, args: &[Any]) -> Result<Any, Raised> {
    // SAFETY: function objects have a function cell.
    let cell = unsafe { function.cell::<FunctionCell>(TypeIndex::FUNCTION) };
    let Some(cell) = cell else { return Err(Raised::take(&Any::NONE, None)) };
    // SAFETY: a function object is the handle of its own entry, and is alive.
    unsafe { invoke(cell.safe_call, function.as_raw().pointer(), args) }
}

/// Calls an entry.
///
/// # Errors
/// The function raises an error.
///
/// # Safety
/// `safe_call` is an entry of this type that is in the process, and `handle` is its first argument.
pub(crate) unsafe fn invoke(safe_call: SafeCall, handle: *mut c_void, args: &[Any]) -> Result<Any, Raised> {
    let mut result = abi::Any::NONE;
    let data = args.as_ptr().cast::<abi::Any>();
    // SAFETY: the arguments are alive during the call, and the result is nothing before it.
    let code = unsafe { safe_call(handle, data, args.len() as c_int, &mut result) };
    // SAFETY: the function gives a reference to the object that it returns.
    let result = unsafe { Any::from_raw(result) };
    match code {
        0 => Ok(result),
        _ => Err(failure(&result)),
    }
}

#[cold]
fn failure(result: &Any) -> Raised {
    Raised::take(result, TvmFfi::present().and_then(TvmFfi::raised))
}
