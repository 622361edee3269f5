//! C functions of the double itself, for tests.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_char, c_int};

pub use crate::counts::Counts;
use crate::cuda::{event, graph};
use crate::{counts, settings};

/// `void gpu_double_counts(struct counts *)`: writes six 64-bit numbers, see [`Counts`].
#[unsafe(no_mangle)]
pub extern "C" fn gpu_double_counts(at: Option<&mut Counts>) {
    if let Some(at) = at {
        *at = counts::read();
    }
}

/// `uint64_t gpu_double_events(void)`: events that are not destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_double_events() -> u64 {
    event::live() as u64
}

/// `uint64_t gpu_double_graphs(void)`: graphs, and instances of them, that are not destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_double_graphs() -> u64 {
    graph::live() as u64
}

/// `int gpu_double_set(const char *name, const char *value)`: sets a variable. Returns 0, without effect, if the
/// variable does not exist or the value is invalid. New rules of faults start to count calls from 0.
///
/// # Safety
/// Each pointer is null or points to a text that ends with a NUL byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_double_set(name: *const c_char, value: *const c_char) -> c_int {
    if name.is_null() || value.is_null() {
        return 0;
    }
    // SAFETY: the caller guarantees a text that ends with a zero.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    // SAFETY: the caller guarantees a text that ends with a zero.
    let value = unsafe { CStr::from_ptr(value) }.to_str();
    match (name, value) {
        (Ok(name), Ok(value)) => settings::set(name, value).into(),
        _ => 0,
    }
}
