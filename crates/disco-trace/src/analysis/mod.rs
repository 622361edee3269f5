//! Findings from a trace: times, waits, mismatches and bandwidths.
//!
//! ```text
//! shares       the parts of each worker's time
//! waits        the workers for which other workers waited
//! slowest      the slowest collectives
//! device       times of operations on devices, by size
//! mismatches   collectives that workers call differently, or not at all
//! ```

mod device;
mod mismatches;
mod shares;
mod slowest;
mod waits;

pub(crate) use device::{DEVICE_HEAD, on_device};
pub(crate) use mismatches::mismatches;
pub(crate) use shares::shares;
pub(crate) use slowest::slowest;
pub(crate) use waits::latest;
