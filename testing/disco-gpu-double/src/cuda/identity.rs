//! Names, UUIDs and bus ids of devices.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use super::abi::{Code, DeviceId, Uuid};

/// The name of every device.
pub(crate) const NAME: &str = "GPU double";

/// The UUID of a device.
pub(crate) fn uuid(device: DeviceId) -> Uuid {
    let mut bytes = *b"gpu double \0\0\0\0\0";
    bytes[12..].copy_from_slice(&device.to_be_bytes());
    Uuid { bytes }
}

/// The PCI bus id of a device.
pub(crate) fn pci(device: DeviceId) -> String {
    format!("0000:{:02x}:00.0", bus(device))
}

/// The PCI bus of a device: unique, and not 0.
pub(crate) fn bus(device: DeviceId) -> c_int {
    device.wrapping_add(1)
}

/// Writes as much of a text as fits into `len` bytes, and a NUL byte.
///
/// # Safety
/// The buffer has room for `len` bytes.
pub(crate) unsafe fn write(at: *mut c_char, len: c_int, text: &str) -> Result<(), Code> {
    let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1));
    let room = room.filter(|_| !at.is_null()).ok_or(Code::INVALID_VALUE)?;
    let end = [0];
    for (i, byte) in text.bytes().take(room).chain(end).enumerate() {
        // SAFETY: `i` is at most `room`, which is less than `len`.
        unsafe { at.wrapping_add(i).cast::<u8>().write(byte) };
    }
    Ok(())
}
