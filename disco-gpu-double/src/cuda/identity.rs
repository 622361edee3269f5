//! Names, UUIDs and bus ids of devices.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use super::abi::{Code, DeviceId, Uuid};

/// The name of every device.
pub(crate) const NAME: &str = "GPU double";

/// The UUID.
pub(crate) fn uuid(device: DeviceId) -> Uuid {
    let mut bytes = *b"gpu double \0\0\0\0\0";
    bytes[12..].copy_from_slice(&device.to_be_bytes());
    Uuid { bytes }
}

/// The bus id.
pub(crate) fn pci(device: DeviceId) -> String {
    format!("0000:{:02x}:00.0", bus(device))
}

/// The bus of a device: no two have the same, and none has 0.
pub(crate) fn bus(device: DeviceId) -> c_int {
    device.wrapping_add(1)
}

/// Writes a text and a zero, as much as there is room for.
///
/// # Safety
/// There is room for `len` characters.
pub(crate) unsafe fn write(at: *mut c_char, len: c_int, text: &str) -> Result<(), Code> {
    let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1));
    let room = room.filter(|_| !at.is_null()).ok_or(Code::INVALID_VALUE)?;
    let end = [0];
    for (i, byte) in text.bytes().take(room).chain(end).enumerate() {
        // SAFETY: no more than `room` and the zero, for which there is room.
        unsafe { at.wrapping_add(i).cast::<u8>().write(byte) };
    }
    Ok(())
}
