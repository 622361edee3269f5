//! The runtime's C functions, under their names in `hip_runtime_api.h`. A pointer that may be null is an `Option`. No
//! export calls another export, because the loader may resolve that name in another library.

#![allow(non_snake_case, reason = "the interface's names")]

pub mod copy;
pub mod device;
pub mod event;
pub mod graph;
pub mod ipc;
pub mod memory;
pub mod peer;
pub mod pool;
pub mod stream;
pub mod text;
pub mod word;

use super::abi::Code;

/// Writes a result to an output parameter that may be null.
fn write_output<T>(at: Option<&mut T>, answer: T) -> Result<(), Code> {
    *at.ok_or(Code::INVALID_VALUE)? = answer;
    Ok(())
}
