//! Initialisation and shutdown, handles of GPUs, and their links.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::abi::{Code, Device};
use super::machine::End;
use crate::cuda::identity;
use crate::settings;
use crate::settings::Machine;
use crate::settings::faults::{self, Action};

/// Number of initialisations without a shutdown.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// The handle of the first GPU, and the distance between handles.
const FIRST: usize = 0x6e76_0000;
const STRIDE: usize = 0x10;

/// `nvmlInit_v2`.
pub(crate) fn start() -> Result<(), Code> {
    fault("nvmlInit_v2", 0)?;
    STARTED.fetch_add(1, SeqCst);
    Ok(())
}

/// `nvmlShutdown`.
pub(crate) fn end() -> Result<(), Code> {
    let fewer = |started: usize| started.checked_sub(1);
    STARTED.fetch_update(SeqCst, SeqCst, fewer).map(drop).map_err(|_| Code::UNINITIALIZED)
}

/// The handle of the GPU with a bus id, `domain:bus:device.function` with any number of digits.
pub(crate) fn at(bus_id: &str) -> Result<Device, Code> {
    check_started()?;
    let place = |text: &str| -> Option<(u32, u32, u32)> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, _) = rest.split_once('.')?;
        let number = |digits| u32::from_str_radix(digits, 16).ok();
        Some((number(domain)?, number(bus)?, number(device)?))
    };
    let wanted = place(bus_id).ok_or(Code::INVALID_ARGUMENT)?;
    let gpu = (0..machine().gpus()).find(|gpu| (0, identity::bus(*gpu as i32).cast_unsigned(), 0) == wanted);
    let gpu = gpu.ok_or(Code::NOT_FOUND)?;
    fault("nvmlDeviceGetHandleByPciBusId_v2", gpu)?;
    Ok(ptr::without_provenance_mut(FIRST + STRIDE * gpu))
}

/// The remote end of a GPU's link, for a function that queries the link.
pub(crate) fn link(function: &str, device: Device, link: u32) -> Result<End, Code> {
    check_started()?;
    let offset = device.addr().checked_sub(FIRST).filter(|offset| offset % STRIDE == 0);
    let gpu = offset.map(|offset| offset / STRIDE).filter(|gpu| *gpu < machine().gpus());
    let gpu = gpu.ok_or(Code::INVALID_ARGUMENT)?;
    fault(function, gpu)?;
    machine().end(gpu, link as usize)
}

/// The PCI bus of a switch: after those of all GPUs.
pub(crate) fn bus_of_switch(switch: usize) -> u32 {
    0xc0 + switch as u32
}

fn machine() -> Machine {
    settings::read().machine()
}

fn check_started() -> Result<(), Code> {
    if STARTED.load(SeqCst) > 0 { Ok(()) } else { Err(Code::UNINITIALIZED) }
}

fn fault(function: &str, gpu: usize) -> Result<(), Code> {
    match faults::next(function, gpu) {
        Some(Action::Code(code)) => Err(Code(code)),
        _ => Ok(()),
    }
}
