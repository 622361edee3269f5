//! Findings from a trace: times, waits, mismatches and bandwidths.
//!
//! ```text
//! shares       the parts of each worker's time
//! waits        time that each rank has waited for each other rank
//! slowest      the slowest collectives; times and bandwidths by size
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
pub(crate) use slowest::{by_size, slowest};
pub(crate) use waits::Waits;
