//! The device kind `cuda`.

use disco_core::device_api::{DeviceApi, DeviceEntry};
use disco_core::{Device, DeviceKind, Error, Queue, Result, Unavailable};

use super::driver;
use super::error::check;
use super::stream::Stream;

/// NVIDIA GPUs that the driver shows to this process (`CUDA_VISIBLE_DEVICES`).
#[derive(Clone, Copy, Debug)]
pub struct Cuda;

disco_core::inventory::submit! { DeviceEntry(&Cuda) }

impl DeviceApi for Cuda {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn count(&self) -> Result<usize, Unavailable> {
        driver::get()?;
        count().map_err(|error| Unavailable {
            what: "CUDA devices".into(),
            tried: vec![("the CUDA driver".into(), error.to_string())],
        })
    }

    fn bind(&self, device: Device) -> Result<Box<dyn Queue>> {
        driver::get()?;
        let (count, ordinal) = (count()?, usize::try_from(device.ordinal));
        match ordinal {
            Ok(ordinal) if device.kind == DeviceKind::Cuda && ordinal < count => {
                Ok(Box::new(super::Queue::new(Stream::new(ordinal)?)))
            }
            _ => {
                let s = if count == 1 { "" } else { "s" };
                Err(Error::invalid(format!(
                    "{device} is not there: this process sees {count} CUDA device{s}. Start no more workers than devices, or name \
                     them with `--devices`"
                )))
            }
        }
    }
}

/// What users may want to see of driver and devices.
///
/// # Errors
/// There is no driver, or no device.
pub(crate) fn details() -> Result<Vec<(String, String)>, Unavailable> {
    let driver = driver::get()?;
    let mut details = vec![("driver".to_owned(), format!("CUDA {}", driver.version))];
    for ordinal in 0..Cuda.count()? {
        details.push((format!("cuda:{ordinal}"), name(ordinal).unwrap_or_else(|error| error.to_string())));
    }
    Ok(details)
}

fn count() -> Result<usize> {
    let count = check("cuDeviceGetCount", cudarc::driver::result::device::get_count())?;
    Ok(usize::try_from(count).unwrap_or_default())
}

fn name(ordinal: usize) -> Result<String> {
    use cudarc::driver::result::device;
    let device = check("cuDeviceGet", device::get(ordinal as i32))?;
    check("cuDeviceGetName", device::get_name(device))
}
