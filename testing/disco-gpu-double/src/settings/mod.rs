//! Settings of the double, from the environment and by tests.

pub(crate) mod faults;
mod machine;
mod values;

pub(crate) use machine::Machine;
pub(crate) use values::{read, set};
