//! The signals that a process of Disco handles. Signals that it has inherited as ignored stay ignored, blocked ones stay
//! blocked, and programs that it starts inherit both.

use std::fs;
use std::io;
use std::process;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use signal_hook::consts::SIGXFSZ;
use signal_hook::iterator::Signals;

/// Handles `signals`, except those that this process has inherited as ignored: with `nohup`, SIGHUP.
///
/// # Errors
/// The system refuses a handler.
pub fn handle(signals: &[i32]) -> io::Result<Signals> {
    Signals::new(not_ignored(signals))
}

/// Makes `signals` end this process if it is process 1 of a container, to which the system sends no signal that has no
/// handler.
///
/// # Errors
/// The system refuses a handler.
pub fn end_process_1(signals: &[i32]) -> io::Result<()> {
    if process::id() != 1 {
        return Ok(());
    }
    let always = Arc::new(AtomicBool::new(true));
    not_ignored(signals).try_for_each(|signal| {
        signal_hook::flag::register_conditional_shutdown(*signal, 128 + signal, always.clone()).map(drop)
    })
}

/// Makes a write beyond the limit of the size of files (`ulimit -f`) an error. Without a handler, the system ends the
/// process.
pub(crate) fn get_errors_of_large_files() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A handler, not `SIG_IGN`: programs that this one starts do not inherit it.
        if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))) {
            tracing::warn!(%error, "a file that is too large would end this process");
        }
    });
}

/// Those of `signals` that this process does not ignore. All without `/proc`.
fn not_ignored(signals: &[i32]) -> impl Iterator<Item = &i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1.
    let ignored = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default();
    signals.iter().filter(move |signal| ignored >> (**signal - 1) & 1 == 0)
}
