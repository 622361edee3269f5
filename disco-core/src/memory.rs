//! Kinds of memory in errors.

use std::fmt;

use crate::device::Device;

/// The kind of memory that was exhausted ([`Error::OutOfMemory`](crate::Error::OutOfMemory)).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Private memory of the process.
    Host,
    /// Shared memory of the machine's processes.
    Shared,
    /// Memory of a device.
    Device(Device),
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Host => f.write_str("of host memory"),
            Memory::Shared => f.write_str("of shared memory"),
            Memory::Device(device) => write!(f, "on {device}"),
        }
    }
}
