//! The devices of one kind that this process sees, and their links.

use disco_core::{Device, Result};

use super::decision::Decision;
use super::topology::Mesh;
use crate::driver::BusId;

/// The devices of one kind that this process sees, their links, and their shape.
#[non_exhaustive]
#[derive(Debug)]
pub struct Survey {
    /// The host name.
    pub host: String,
    /// The devices, by ordinal.
    pub sites: Vec<Site>,
    /// The links between the devices, or the error of the vendor's library.
    pub mesh: Result<Mesh>,
    /// The shape of the links.
    pub decision: Decision,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes them")]
pub struct Site {
    /// The device, with its ordinal in this process.
    pub device: Device,
    /// The vendor's name of the device.
    pub name: String,
    /// The address of the device.
    pub bus_id: BusId,
}

impl Survey {
    /// Decides the shape of these links.
    ///
    /// # Errors
    /// As for [`Decision::of`].
    pub fn new(sites: Vec<Site>, mesh: Result<Mesh>) -> Result<Self> {
        let decision = Decision::of(sites.len(), &mesh)?;
        Ok(Self { host: host(), sites, mesh, decision })
    }
}

/// The host name, as `uname -n` prints it.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
