//! The scheduling policy of threads that run operations beside a worker.

#![allow(unsafe_code)]

/// Asks the system not to let this thread take the processor of the thread that wakes it up: of the worker that has started
/// an operation, and goes on. Does nothing if the program has chosen another policy than the usual one, or elsewhere than on
/// Linux.
pub(super) fn wake_up_behind_others() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: reads the policy of the calling thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        if policy == libc::SCHED_OTHER {
            let param = libc::sched_param { sched_priority: 0 };
            // Fails only where the system forbids the policy.
            // SAFETY: sets the policy of the calling thread, and reads `param`.
            _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &param) };
        }
    }
}
