//! The version, unique ids, and texts of errors.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_char, c_int};

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
    let text: &'static CStr = match code {
        Code::SUCCESS => c"no error",
        Code::UNHANDLED_CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        Code::SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        Code::INTERNAL_ERROR => c"internal error - please report this issue to the NCCL developers",
        Code::INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        Code::INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        Code::REMOTE_ERROR => c"remote process exited or there was a network error",
        Code::IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// `const char *ncclGetLastError(ncclComm_t)`: the error of the communicator, if it has one, otherwise the last error
/// of the process.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(comm: CommHandle) -> *const c_char {
    let of_comm = (!comm.is_null()).then(|| comm::find(comm).ok()).flatten().and_then(|comm| comm.error_text());
    text::last_error(of_comm)
}
