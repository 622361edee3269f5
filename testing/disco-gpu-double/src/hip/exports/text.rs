//! Names and texts of codes, and the last error of a thread.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_char};

use crate::hip::abi::Code;
use crate::hip::last;

/// `hipError_t hipGetLastError(void)`: the last error of this thread since its last call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn hipGetLastError() -> Code {
    last::take()
}

/// `const char *hipGetErrorName(hipError_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(code: Code) -> *const c_char {
    find(code).0.as_ptr()
}

/// `const char *hipGetErrorString(hipError_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(code: Code) -> *const c_char {
    find(code).1.as_ptr()
}

/// The name and text of a code; those of `hipErrorUnknown` for an unknown code.
fn find(code: Code) -> (&'static CStr, &'static CStr) {
    let found = TEXTS.iter().find(|(known, ..)| *known == code.0);
    found.map_or((c"hipErrorUnknown", c"unknown error"), |&(_, name, text)| (name, text))
}

const TEXTS: &[(i32, &CStr, &CStr)] = &[
    (0, c"hipSuccess", c"no error"),
    (1, c"hipErrorInvalidValue", c"invalid argument"),
    (2, c"hipErrorOutOfMemory", c"out of memory"),
    (3, c"hipErrorNotInitialized", c"initialization error"),
    (4, c"hipErrorDeinitialized", c"driver shutting down"),
    (17, c"hipErrorInvalidDevicePointer", c"invalid device pointer"),
    (21, c"hipErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy"),
    (35, c"hipErrorInsufficientDriver", c"driver version is insufficient for runtime version"),
    (100, c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
    (101, c"hipErrorInvalidDevice", c"invalid device ordinal"),
    (201, c"hipErrorInvalidContext", c"invalid device context"),
    (217, c"hipErrorPeerAccessUnsupported", c"peer access is not supported between these two devices"),
    (400, c"hipErrorInvalidHandle", c"invalid resource handle"),
    (600, c"hipErrorNotReady", c"device not ready"),
    (700, c"hipErrorIllegalAddress", c"an illegal memory access was encountered"),
    (704, c"hipErrorPeerAccessAlreadyEnabled", c"peer access is already enabled"),
    (705, c"hipErrorPeerAccessNotEnabled", c"peer access has not been enabled"),
    (900, c"hipErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing"),
    (901, c"hipErrorStreamCaptureInvalidated", c"operation failed due to a previous error during capture"),
    (709, c"hipErrorContextIsDestroyed", c"context is destroyed"),
    (719, c"hipErrorLaunchFailure", c"unspecified launch failure"),
    (801, c"hipErrorNotSupported", c"operation not supported"),
];
