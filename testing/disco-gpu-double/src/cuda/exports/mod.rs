//! The driver's C functions, under their names in `cuda.h`. A pointer that may be null is an `Option`. No export calls
//! another export, because the loader may resolve that name in another library.

#![allow(non_snake_case, reason = "the interface's names")]

pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod graph;
pub mod ipc;
pub mod memory;
pub mod module;
pub mod peer;
pub mod pool;
pub mod stream;
pub mod table;
pub mod text;
pub mod word;

use super::abi::Code;

/// Writes a result to an output parameter that may be null.
fn write_output<T>(at: Option<&mut T>, answer: T) -> Result<(), Code> {
    *at.ok_or(Code::INVALID_VALUE)? = answer;
    Ok(())
}
