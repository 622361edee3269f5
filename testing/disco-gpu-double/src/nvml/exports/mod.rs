//! NVML's C functions, under their names in `nvml.h`. A pointer that may be null is an `Option`.

#![allow(non_snake_case, reason = "the interface's names")]

pub mod library;
pub mod link;

use super::abi::Code;

/// Writes a result to an output parameter that may be null.
fn write_output<T>(at: Option<&mut T>, answer: T) -> Result<(), Code> {
    *at.ok_or(Code::INVALID_ARGUMENT)? = answer;
    Ok(())
}
