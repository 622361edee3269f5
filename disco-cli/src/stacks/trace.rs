//! Stops a thread for a moment, and copies its registers and its stack.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::maps::Maps;
use super::unwind::{Registers, Snapshot};

/// How long a thread may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is checked whether the thread has stopped.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// Most bytes of a stack that are copied.
const MAX_STACK_BYTES: u64 = 16 << 20;

/// A thread that is stopped, until this is dropped.
struct Stopped {
    thread: Pid,
    /// The signal that it was about to get.
    signal: Option<Signal>,
}

/// Takes a snapshot of a thread.
///
/// # Errors
/// The thread has ended, may not be traced, or does not stop in time, because it waits in the system without
/// interruption.
pub(super) fn take(process: u32, thread: u32, maps: &Maps) -> io::Result<Snapshot> {
    let stopped = stop(thread)?;
    let registers = Registers::of(&ptrace::getregs(stopped.thread)?);
    let start = registers.stack_pointer();
    let end = maps.find(start).map_or(start, |mapping| mapping.range.end).min(start.saturating_add(MAX_STACK_BYTES));
    let mut stack = vec![0; usize::try_from(end - start).unwrap_or(0)];
    // The rest of a part that can't be read is zero, which ends the unwinding.
    let read = File::open(format!("/proc/{process}/mem"))?.read_at(&mut stack, start)?;
    stack.truncate(read);
    Ok(Snapshot { registers, stack })
}

fn stop(thread: u32) -> io::Result<Stopped> {
    let mut stopped = Stopped { thread: Pid::from_raw(thread.try_into().map_err(io::Error::other)?), signal: None };
    ptrace::seize(stopped.thread, ptrace::Options::empty())?;
    ptrace::interrupt(stopped.thread)?;
    let start = Instant::now();
    loop {
        match waitpid(stopped.thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive if start.elapsed() < STOP_TIMEOUT => thread::sleep(POLL_INTERVAL),
            WaitStatus::StillAlive => {
                return Err(io::Error::other("the thread does not stop: it waits in the system, without interruption"));
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err(Errno::ESRCH.into()),
            WaitStatus::Stopped(_, signal) => {
                stopped.signal = Some(signal);
                return Ok(stopped);
            }
            // The stop that was asked for, or a stopped process.
            _ => return Ok(stopped),
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A thread that has not stopped is let go when this process ends.
        _ = ptrace::detach(self.thread, self.signal);
    }
}
