//! What users say by variables.

use std::env;

use disco_core::{Error, Result};

/// All goes by the vendor's library.
pub const OFF: &str = "DISCO_P2P=0";

/// Whether users want no peer-to-peer memory.
pub fn is_off() -> bool {
    env::var_os("DISCO_P2P").is_some_and(|value| value == "0")
}

/// Whether several ranks may be on one device (`DISCO_SHARE_DEVICES=1`): for evidence on a machine with one GPU.
pub fn shares_devices() -> bool {
    env::var_os("DISCO_SHARE_DEVICES").is_some_and(|value| value == "1")
}

/// The bytes that a variable says, or so many where it says nothing.
///
/// # Errors
/// It is no number.
pub fn bytes_of(variable: &str, otherwise: usize) -> Result<usize> {
    let Some(text) = env::var_os(variable).filter(|text| !text.is_empty()) else { return Ok(otherwise) };
    let bytes = text.to_str().and_then(|text| text.parse().ok());
    bytes.ok_or_else(|| Error::invalid(format!("{variable}={}: that is no number of bytes", text.display())))
}
