//! What users say by variables.

use disco_core::Result;
use disco_core::env::Variable;

/// All goes by the vendor's library.
pub const OFF_REASON: &str = "DISCO_P2P=0";

/// Whether users want no peer-to-peer memory.
///
/// # Errors
/// `DISCO_P2P` is neither 0 nor 1.
pub fn is_off() -> Result<bool> {
    Ok(Variable::read("DISCO_P2P").flag()? == Some(false))
}

/// Whether several ranks may be on one device (`DISCO_SHARE_DEVICES=1`): for evidence on a machine with one GPU.
///
/// # Errors
/// The variable is neither 0 nor 1.
pub fn shares_devices() -> Result<bool> {
    Ok(Variable::read("DISCO_SHARE_DEVICES").flag()?.unwrap_or(false))
}

/// The bytes that a variable says, or so many where it says nothing.
///
/// # Errors
/// It is no number.
pub fn bytes_of(variable: &str, otherwise: usize) -> Result<usize> {
    let variable = Variable::read(variable);
    let bytes = variable.number().map_err(|_| variable.refuse("that is no number of bytes"))?;
    Ok(bytes.unwrap_or(otherwise))
}
