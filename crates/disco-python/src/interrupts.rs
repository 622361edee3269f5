//! Ctrl-C.

use nix::sys::signal::{SigSet, Signal};

/// Keeps SIGINT from this thread and from those that it starts: it is for the thread that waits.
pub(crate) fn block_interrupts() {
    // A thread that gets them interrupts the wait all the same, a tenth of a second later.
    _ = SigSet::from_iter([Signal::SIGINT]).thread_block();
}
