//! Environment variables of peer-to-peer memory.

use disco_core::Result;
use disco_core::env::Variable;

/// Whether several ranks may be on one device (`DISCO_SHARE_DEVICES=1`): for measurements on a machine with one GPU.
///
/// # Errors
/// `DISCO_SHARE_DEVICES` is neither 0 nor 1.
pub fn shares_devices() -> Result<bool> {
    Ok(Variable::read("DISCO_SHARE_DEVICES").flag()?.unwrap_or(false))
}

/// The number of bytes that a variable sets, or `otherwise` if it is not set.
///
/// # Errors
/// The value is not a number.
pub fn bytes_of(variable: &str, otherwise: usize) -> Result<usize> {
    let variable = Variable::read(variable);
    let bytes = variable.number().map_err(|_| variable.refuse("that is no number of bytes"))?;
    Ok(bytes.unwrap_or(otherwise))
}
