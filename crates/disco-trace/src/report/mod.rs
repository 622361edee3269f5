//! A page with pictures and tables of a trace: times, waits, bandwidths, imbalance.
//!
//! ```text
//! measured     results of `disco bench` to compare with
//! page         the page: its parts in order
//! shares       the parts of each worker's time, as stacked bars
//! waits        the time that each worker waited for each other worker, as a heat map
//! bandwidths   collectives by size, against the best one and a measured one
//! device       times of operations on devices
//! imbalance    the time between first and last arrival, over the time of the trace
//! rows         workers as rows of a picture: one each, or several if there are many
//! ```

mod bandwidths;
mod device;
mod imbalance;
mod measured;
mod page;
mod rows;
mod shares;
mod waits;

use std::fs;
use std::path::Path;

use crate::error::TraceError;
use crate::trace::Trace;

pub use measured::Measured;

/// The report as one HTML page, which loads nothing from elsewhere. Bandwidths are compared with those measured.
pub fn page(trace: &Trace, measured: &[Measured]) -> String {
    page::page(trace, measured)
}

/// Writes [`page`] to a file; an existing one is replaced.
///
/// # Errors
/// The file can't be written; the error names it.
pub fn write(trace: &Trace, measured: &[Measured], path: &Path) -> Result<(), TraceError> {
    fs::write(path, page(trace, measured)).map_err(TraceError::write(path))
}
