//! How the double behaves: what the environment says, and what tests change.

pub(crate) mod faults;
mod machine;
mod values;

pub(crate) use machine::Machine;
pub(crate) use values::{read, set};
