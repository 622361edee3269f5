//! Short turns of threads that compile grammars.

#![allow(unsafe_code, reason = "a handler of signals")]

/// Lets the thread that begins them sleep for a moment after every 250 µs, until they are dropped. Does nothing elsewhere than on Linux
/// with glibc, and where the system has no timer.
///
/// A low priority is not enough: a worker that waits for another one yields its processor, and Linux takes it back from the thread that
/// has got it only with the next tick, after up to 4 ms, for which all workers of the step wait.
pub(crate) struct Turns {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    _timer: Option<nix::sys::timer::Timer>,
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
impl Turns {
    pub(crate) fn begin() -> Self {
        Self {}
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::io;
    use std::sync::OnceLock;
    use std::time::Duration;

    use nix::sys::signal::{SigEvent, SigevNotify, Signal};
    use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
    use nix::time::ClockId;
    use rustix::thread::{Timespec, gettid, nanosleep};

    use super::Turns;

    /// How long a thread has a processor at a time.
    const TURN: Duration = Duration::from_micros(250);
    /// The signal of the timers, which the system ignores without a handler.
    const SIGNAL: Signal = Signal::SIGURG;

    impl Turns {
        pub(crate) fn begin() -> Self {
            let timer = begin().inspect_err(|error| tracing::debug!(%error, "grammars are compiled without turns"));
            Self { _timer: timer.ok() }
        }
    }

    fn begin() -> io::Result<Timer> {
        handle()?;
        let thread_id = gettid().as_raw_nonzero().get();
        let event = SigEvent::new(SigevNotify::SigevThreadId { signal: SIGNAL, thread_id, si_value: 0 });
        let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, event)?;
        timer.set(Expiration::Interval(TURN.into()), TimerSetTimeFlags::empty())?;
        Ok(timer)
    }

    /// Handles the signal for the whole process, once.
    fn handle() -> io::Result<()> {
        static HANDLED: OnceLock<Result<(), io::ErrorKind>> = OnceLock::new();
        let rest = || _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1 });
        // SAFETY: the handler is one system call, without memory, locks or `errno`.
        let register = || unsafe { signal_hook::low_level::register(SIGNAL as i32, rest) };
        let handled = HANDLED.get_or_init(|| register().map(drop).map_err(|error| error.kind()));
        (*handled).map_err(io::Error::from)
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;

    /// How often this thread has given its processor away by itself.
    fn rests() -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let rests = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        rests.trim().parse().unwrap()
    }

    #[test]
    fn a_busy_thread_rests_until_its_turns_are_dropped() {
        let busy = |enough: u64| {
            let (before, began) = (rests(), Instant::now());
            while rests() < before + enough && began.elapsed() < Duration::from_secs(20) {}
            rests() - before
        };
        let turns = Turns::begin();
        assert!(busy(10) >= 10);
        drop(turns);
        // Some milliseconds, in which the system itself may let the thread wait.
        let (before, mut sum) = (rests(), 0u64);
        for number in 0..10_000_000 {
            sum = std::hint::black_box(sum ^ number);
        }
        assert!(rests() < before + 5);
    }
}
