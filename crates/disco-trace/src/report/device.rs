//! Times of operations on devices.

use crate::analysis::{DEVICE_HEAD, on_device};
use crate::calls::Calls;
use crate::drawing::table;
use crate::format::time;
use crate::trace::Trace;

/// Largest number of rows.
const MAX_ROWS: usize = 24;

/// Empty if no time on a device is recorded.
pub(super) fn section(trace: &Trace, calls: &Calls<'_>) -> String {
    let (rows, error) = on_device(trace, calls);
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = rows.iter().take(MAX_ROWS).map(|row| row.cells()).collect();
    let lead = format!(
        "<p>Medians over all workers, from events of each worker's stream before and behind an operation. A rank's time on \
         the device has its wait for other ranks in it. Starts are known within {}.</p>\n",
        time(error)
    );
    format!("<h2>Times on devices</h2>\n{lead}{}", table(DEVICE_HEAD, &rows))
}
