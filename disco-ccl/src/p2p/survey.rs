//! All devices of a kind on this machine.

use disco_core::{Device, Result};

use super::decision::Decision;
use super::topology::Mesh;
use crate::driver::BusId;

/// The devices of a kind that this process sees, and what they are to each other.
#[non_exhaustive]
#[derive(Debug)]
pub struct Survey {
    /// The machine's name.
    pub host: String,
    /// The devices, by their numbers.
    pub sites: Vec<Site>,
    /// The links between them, or why they are not known: no library to ask, or what it failed with.
    pub mesh: Result<Mesh>,
    /// What follows.
    pub decision: Decision,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes them")]
pub struct Site {
    /// The device, as this process numbers it.
    pub device: Device,
    /// What its makers call it.
    pub name: String,
    /// Where it is.
    pub bus_id: BusId,
}

impl Survey {
    /// Decides what devices with these links are to each other.
    ///
    /// # Errors
    /// As [`Decision::of`].
    pub fn new(sites: Vec<Site>, mesh: Result<Mesh>) -> Result<Self> {
        let decision = Decision::of(sites.len(), &mesh)?;
        Ok(Self { host: host(), sites, mesh, decision })
    }
}

/// This machine's name, as `uname -n` prints it.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
