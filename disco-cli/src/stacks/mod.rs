//! Native stacks of threads of other processes.
//!
//! A thread is stopped by ptrace, as by a debugger that attaches, for the time that it takes to read its registers and to
//! copy its stack. It is unwound from this copy (`framehop`), by the unwind tables of the files that the process has
//! mapped, and its functions are named from their symbols and debug information (`addr2line`). Neither executes code of
//! the process.
//!
//! Where Linux does not permit this, the stack has the reason, and the system's facts of the thread.

mod denied;
mod kernel;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod maps;
#[cfg_attr(not(any(target_arch = "aarch64", target_arch = "x86_64")), path = "unsupported.rs")]
mod reader;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod symbols;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod trace;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod unwind;

use serde::Serialize;

pub(crate) use self::reader::Reader;

/// The stack of a thread.
#[derive(Debug, Serialize)]
pub(crate) struct Stack {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    /// The state of the thread, as the system reports it: `running`, or `sleeping in futex (futex_do_wait)`.
    pub(crate) state: String,
    /// The functions that the thread is inside, the innermost first.
    pub(crate) frames: Vec<Frame>,
    /// Why there are no frames.
    pub(crate) problem: Option<String>,
}

/// A function that a thread is inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Frame {
    /// The name, demangled; `None` without a symbol.
    pub(crate) function: Option<String>,
    /// The file and the line, if there is debug information.
    pub(crate) location: Option<String>,
    /// The file of the code, and the address in it.
    pub(crate) code: String,
}

/// The threads of a process that Disco has started, and its main thread, which is the first: thread ids with names.
pub(crate) fn threads(process: u32) -> Vec<(u32, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let named = tasks.filter_map(|task| {
        let thread: u32 = task.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let name = if thread == process { "main thread" } else { name.trim() };
        (thread == process || name.starts_with("disco-worker")).then(|| (thread, name.to_owned()))
    });
    let mut threads: Vec<_> = named.collect();
    threads.sort();
    threads
}
