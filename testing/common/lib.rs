//! What test programs of several packages share, and `xtask` with them.

pub mod features;
#[cfg(target_os = "linux")]
pub mod namespaces;
pub mod random;
#[cfg(target_os = "linux")]
pub mod terminal;
pub mod trials;
