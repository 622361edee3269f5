//! Substitutes for settings of workers outside of this process, on systems without them.

use disco_core::Result;

use super::{Launched, Settings};
use crate::Builder;

pub(super) fn tell_run() {}

pub(super) fn launched() -> Result<Option<Launched>> {
    Ok(None)
}

/// The builder as it is: its start refuses processes and nodes.
pub(super) fn configure(builder: Builder, _: &Settings) -> Builder {
    builder
}
