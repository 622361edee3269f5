//! Polling loops, which end at an abort or at a deadline.

use std::thread;
use std::time::{Duration, Instant};

use disco_core::Result;

/// Polls between two yields of the thread.
const POLLS_PER_YIELD: u32 = 200;
/// Polls before the loop sleeps between polls.
const POLLS_BEFORE_SLEEP: u32 = 20_000;
/// Sleep between two polls.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Polls `holds` until it returns true: first in a spin loop, then with yields, then with sleeps. At each yield and
/// sleep, calls `check` and `check_elapsed`, which gets the time since its first call. An error of any of them ends the
/// wait.
///
/// # Errors
/// The errors of `check`, `holds` and `check_elapsed`.
pub(crate) fn wait(
    check: impl Fn() -> Result<()>,
    mut holds: impl FnMut() -> Result<bool>,
    mut check_elapsed: impl FnMut(Duration) -> Result<()>,
) -> Result<()> {
    let (mut polls, mut start) = (0u32, None);
    while !holds()? {
        polls = polls.saturating_add(1);
        if polls > POLLS_BEFORE_SLEEP {
            thread::sleep(POLL_INTERVAL);
        } else if polls % POLLS_PER_YIELD != 0 {
            std::hint::spin_loop();
            continue;
        } else {
            thread::yield_now();
        }
        check()?;
        check_elapsed(start.get_or_insert_with(Instant::now).elapsed())?;
    }
    Ok(())
}

/// Polls `holds` for at most `limit`, and returns whether it holds. Ignores aborts and the rank's deadline.
pub(crate) fn wait_up_to(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
    true
}
