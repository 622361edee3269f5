//! How a rank waits: by looking, so that an abort and a deadline end every wait.

use std::thread;
use std::time::{Duration, Instant};

use disco_core::Result;

/// Looks in a row.
const SPINS: u32 = 200;
/// Looks until pauses begin; others run in between once in so many.
const YIELDS: u32 = 20_000;
/// Between two later looks.
pub(crate) const PAUSE: Duration = Duration::from_micros(50);

/// Waits until something holds. Now and then `check` and `long` say whether to go on; `long` gets the time since it was first asked.
///
/// # Errors
/// Those of `check`, `holds` and `long`.
pub(crate) fn wait(
    check: impl Fn() -> Result<()>,
    mut holds: impl FnMut() -> Result<bool>,
    mut long: impl FnMut(Duration) -> Result<()>,
) -> Result<()> {
    let (mut looks, mut start) = (0u32, None);
    while !holds()? {
        looks = looks.saturating_add(1);
        if looks > YIELDS {
            thread::sleep(PAUSE);
        } else if looks % SPINS != 0 {
            std::hint::spin_loop();
            continue;
        } else {
            thread::yield_now();
        }
        check()?;
        long(start.get_or_insert_with(Instant::now).elapsed())?;
    }
    Ok(())
}

/// Polls `holds` for at most `limit`, and returns whether it holds. Neither an abort nor a deadline of the rank ends the wait.
pub(crate) fn until(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}
