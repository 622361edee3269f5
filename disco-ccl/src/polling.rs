//! How a rank waits: by looking, so that an abort and a deadline end every wait.

use std::thread;
use std::time::{Duration, Instant};

use disco_core::Result;

/// Looks in a row.
const POLLS_PER_YIELD: u32 = 200;
/// Looks until pauses begin; others run in between once in so many.
const POLLS_BEFORE_SLEEP: u32 = 20_000;
/// Between two later polls.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Waits until something holds. Now and then `check` and `check_elapsed` say whether to go on; `check_elapsed` gets the time since it was first asked.
///
/// # Errors
/// Those of `check`, `holds` and `check_elapsed`.
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

/// Polls `holds` for at most `limit`, and returns whether it holds. Neither an abort nor a deadline of the rank ends the wait.
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
