//! The devices of this process.

use disco_core::{Device, DeviceKind, Error, Queue as _, Result};

use crate::backend::Details;
use crate::driver::Driver;
use crate::queue::Queue;
use crate::runtime::Runtime;

/// Makes a queue on `device`. The process sees `count` devices of this kind, and `make` makes the driver of a device.
///
/// # Errors
/// The process sees no such device; errors of the driver.
pub fn bind<D: Driver>(
    (kind, count): (DeviceKind, usize),
    device: Device,
    make: impl FnOnce(usize) -> Result<D>,
) -> Result<Box<dyn disco_core::Queue>> {
    let ordinal = usize::try_from(device.ordinal).ok().filter(|ordinal| device.kind == kind && *ordinal < count);
    let ordinal = ordinal.ok_or_else(|| {
        let s = if count == 1 { "" } else { "s" };
        Error::invalid(format!(
            "{device} does not exist: this process sees {count} {kind} device{s}. Start no more workers than devices, \
             or name the devices with `--devices`"
        ))
    })?;
    let queue = Queue::new(Runtime::new(make(ordinal)?));
    debug_assert_eq!(queue.device(), device, "`make` makes the driver of the requested device");
    Ok(Box::new(queue))
}

/// Details for the user: the driver's version, and for each device its name or the error of the query.
pub fn details(driver: String, (kind, count): (DeviceKind, usize), name: impl Fn(usize) -> Result<String>) -> Details {
    let names = (0..count).map(|ordinal| {
        let name = name(ordinal).unwrap_or_else(|error| error.to_string());
        (Device::new(kind, ordinal as i32).to_string(), name)
    });
    [("driver".to_owned(), driver)].into_iter().chain(names).collect()
}
