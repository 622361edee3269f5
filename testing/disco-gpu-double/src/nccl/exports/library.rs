//! The version, unique ids, and texts of errors.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_char, c_int};

use super::write_output;
use crate::nccl::abi::{Code, CommHandle, UniqueId};
use crate::nccl::{comm, text, unique_id};
use crate::settings;

/// `ncclGetVersion(int *version)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: Option<&mut c_int>) -> Code {
    Code::of(write_output(version, settings::read().nccl_version()))
}

/// `ncclGetUniqueId(ncclUniqueId *id)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: Option<&mut UniqueId>) -> Code {
    Code::of(write_output(id, unique_id::make()))
}

/// `const char *ncclGetErrorString(ncclResult_t)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    code.describe().map_or(c"unknown result code", |code| code.text).as_ptr()
}

/// `const char *ncclGetLastError(ncclComm_t)`: the error of the communicator, if it has one, otherwise the last error
/// of the process.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(comm: CommHandle) -> *const c_char {
    let of_comm = (!comm.is_null()).then(|| comm::find(comm).ok()).flatten().and_then(|comm| comm.error_text());
    text::last_error(of_comm)
}
