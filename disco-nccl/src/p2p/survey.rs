//! The GPUs that this process sees.

use disco_core::{DeviceApi as _, Error, Result, Unavailable};

use super::{Site, Survey, nvml};
use crate::cuda::{self, Cuda};

/// The GPUs that this process sees, the links between them, and what these are good for. Starts nothing on any of them.
///
/// Without NVML, or where it fails, the links are not known, and the reason is in the survey. `DISCO_P2P_TOPOLOGY`
/// says, for tests, what is decided all the same.
///
/// # Errors
/// [`Error::Unavailable`] where there is no driver or no GPU; the driver's own; the variable asks for what can't be.
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

/// One of them: its name, and where it is.
///
/// # Errors
/// There is no such device; the driver's own.
pub fn site(ordinal: usize) -> Result<Site> {
    Cuda.count()?;
    cuda::site(ordinal)
}
