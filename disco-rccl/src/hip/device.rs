//! The device kind `rocm`.

#![allow(unsafe_code)]

use std::ffi::c_int;

use disco_core::device_api::{DeviceApi, DeviceEntry};
use disco_core::{Device, DeviceKind, Queue, Result, Unavailable};

use super::library::Library;
use super::stream::Stream;

/// AMD GPUs that the driver shows to this process (`HIP_VISIBLE_DEVICES`).
#[allow(clippy::exhaustive_structs, reason = "a unit")]
#[derive(Clone, Copy, Debug)]
pub struct Hip;

disco_core::inventory::submit! { DeviceEntry(&Hip) }

impl DeviceApi for Hip {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Rocm
    }

    fn count(&self) -> Result<usize, Unavailable> {
        let library = Library::get()?;
        let mut count = 0;
        // SAFETY: `count` is writable.
        let code = unsafe { (library.table.get_device_count)(&mut count) };
        let found = library.check("hipGetDeviceCount", code);
        found
            .map(|()| usize::try_from(count).unwrap_or_default())
            .map_err(|error| Unavailable::new("an AMD device").with_tried(library.to_string(), error.to_string()))
    }

    fn bind(&self, device: Device) -> Result<Box<dyn Queue>> {
        disco_ccl::bind((self.kind(), self.count()?), device, Stream::new)
    }
}

/// The version of HIP and the names of the devices, for reports to users.
///
/// # Errors
/// HIP is missing, or can't count its devices.
pub(crate) fn details() -> Result<disco_ccl::Details, Unavailable> {
    let library = Library::get()?;
    Ok(disco_ccl::details(library.to_string(), (DeviceKind::Rocm, Hip.count()?), name))
}

fn name(ordinal: usize) -> Result<String> {
    let library = Library::get()?;
    library.text_of_device("hipDeviceGetName", library.table.device_get_name, ordinal as c_int)
}
