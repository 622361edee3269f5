//! Variables that are meant for this process alone.

#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fs;

/// Takes a variable out of the environment. Children of this process get none, if no other thread is there yet that might
/// use the environment; else it stays where it is.
pub fn take(name: &str) -> Option<OsString> {
    let text = env::var_os(name)?;
    if fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1) {
        // SAFETY: this is the only thread.
        unsafe { env::remove_var(name) };
    }
    Some(text)
}
