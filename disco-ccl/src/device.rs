//! Which devices there are.

use disco_core::{Device, DeviceKind, Error, Queue as _, Result};

use crate::backend::Details;
use crate::driver::Driver;
use crate::queue::Queue;
use crate::runtime::Runtime;

/// A queue on a device of a kind of which this process sees `count`, whose driver `make` makes.
///
/// # Errors
/// There is no such device; the driver's own.
pub fn bind<D: Driver>(
    (kind, count): (DeviceKind, usize),
    device: Device,
    make: impl FnOnce(usize) -> Result<D>,
) -> Result<Box<dyn disco_core::Queue>> {
    let ordinal = usize::try_from(device.ordinal).ok().filter(|ordinal| device.kind == kind && *ordinal < count);
    let ordinal = ordinal.ok_or_else(|| {
        let s = if count == 1 { "" } else { "s" };
        Error::invalid(format!(
            "{device} is not there: this process sees {count} {kind} device{s}. Start no more workers than devices, or name them with \
             `--devices`"
        ))
    })?;
    let queue = Queue::new(Runtime::new(make(ordinal)?));
    debug_assert_eq!(queue.device(), device, "the driver is of that device");
    Ok(Box::new(queue))
}

/// What users may want to see: the driver's version, and each device's name, or why it can't be had.
pub fn details(driver: String, (kind, count): (DeviceKind, usize), name: impl Fn(usize) -> Result<String>) -> Details {
    let names = (0..count).map(|ordinal| {
        let name = name(ordinal).unwrap_or_else(|error| error.to_string());
        (Device::new(kind, ordinal as i32).to_string(), name)
    });
    [("driver".to_owned(), driver)].into_iter().chain(names).collect()
}
