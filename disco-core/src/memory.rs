//! Kinds of memory, for errors.

use std::fmt;

use crate::device::Device;

/// A kind of memory, of which there can be too little.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Private memory of the process.
    Host,
    /// Memory that the processes of a machine share.
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
