//! The GPUs that this process sees.

use disco_core::{DeviceApi as _, Error, Result, Unavailable};

use super::{Site, Survey, nvml};
use crate::cuda::{self, Cuda};

/// The GPUs that this process sees, the links between them, and the topology that follows. Creates no context on any
/// GPU.
///
/// If NVML is missing or fails, the links are unknown, and the survey has the reason. `DISCO_P2P_TOPOLOGY` overrides
/// the topology, for tests.
///
/// # Errors
/// [`Error::Unavailable`] without a driver or a GPU; errors of the driver; a value of the variable that this machine
/// can't have.
pub fn topology() -> Result<Survey> {
    let count = Cuda.count()?;
    if count == 0 {
        let none = Unavailable::new("a CUDA device").with_tried("the CUDA driver", "it shows no device");
        return Err(Error::Unavailable(none));
    }
    let sites = (0..count).map(site).collect::<Result<Vec<_>>>()?;
    let bus_ids: Vec<_> = sites.iter().map(|site| site.bus_id).collect();
    Survey::new(sites, nvml::mesh(&bus_ids))
}

/// The name and the PCI bus id of a GPU.
///
/// # Errors
/// There is no driver or no such device; errors of the driver.
pub fn site(ordinal: usize) -> Result<Site> {
    Cuda.count()?;
    cuda::site(ordinal)
}
