//! Variables that are meant for this process alone.

#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fs;

/// Of them, those that make a process a node and tell what only nodes know. Workers that are processes get none of them.
pub const OF_NODES: [&str; 5] =
    ["DISCO_CONNECT", "DISCO_NODE_ID", "DISCO_WORKERS_PER_NODE", "DISCO_JOIN_SECONDS", "DISCO_TOKEN"];

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
