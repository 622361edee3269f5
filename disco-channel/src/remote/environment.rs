//! Environment variables that only this process may see.

#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fs;

/// Variables that configure a node. They are removed from the environment of worker processes.
pub const OF_NODES: [&str; 6] =
    ["DISCO_CONNECT", "DISCO_NODE_ID", "DISCO_SPARE", "DISCO_MAX_WORKERS", "DISCO_JOIN_SECONDS", "DISCO_TOKEN"];

/// Returns the value of a variable, and removes it from the environment so that children do not inherit it. The
/// variable is only removed while the process has a single thread: another thread might read the environment meanwhile.
pub fn take(name: &str) -> Option<OsString> {
    let text = env::var_os(name)?;
    if fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1) {
        // SAFETY: the process has one thread, so no other thread reads the environment during the call.
        unsafe { env::remove_var(name) };
    }
    Some(text)
}
