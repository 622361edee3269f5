//! NVRTC's C functions, under their names in `nvrtc.h`. Nothing is compiled: the machine code of any source is the
//! start of an ELF header, which is all that `cuModuleLoadData` of the double checks. So tests of code that uses
//! kernels do not spend the seconds that the real compiler takes in each process.

#![allow(unsafe_code, reason = "C functions")]
#![allow(non_snake_case, reason = "the interface's names")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// `NVRTC_SUCCESS`.
const SUCCESS: c_int = 0;
/// `NVRTC_ERROR_INVALID_INPUT`.
const INVALID_INPUT: c_int = 3;

/// The machine code of every source.
const CUBIN: [u8; 8] = *b"\x7fELF\x02\x01\x01\0";
/// An empty log: its NUL byte.
const LOG: [u8; 1] = [0];

/// Writes a result to an output parameter that may be null.
fn write_output<T>(at: Option<&mut T>, answer: T) -> c_int {
    let Some(at) = at else { return INVALID_INPUT };
    *at = answer;
    SUCCESS
}

/// `nvrtcVersion(int *major, int *minor)`
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcVersion(major: Option<&mut c_int>, minor: Option<&mut c_int>) -> c_int {
    write_output(major, 12).max(write_output(minor, 8))
}

/// `const char *nvrtcGetErrorString(nvrtcResult)`
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(_: c_int) -> *const c_char {
    c"NVRTC_ERROR of the test double".as_ptr()
}

/// `nvrtcCreateProgram`: all programs have the same handle, and no state.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCreateProgram(
    program: Option<&mut *mut c_void>,
    source: *const c_char,
    _: *const c_char,
    _: c_int,
    _: *const *const c_char,
    _: *const *const c_char,
) -> c_int {
    if source.is_null() {
        return INVALID_INPUT;
    }
    write_output(program, ptr::without_provenance_mut(1))
}

/// `nvrtcCompileProgram(nvrtcProgram, int, const char *const *options)`
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCompileProgram(_: *mut c_void, _: c_int, _: *const *const c_char) -> c_int {
    SUCCESS
}

/// `nvrtcGetProgramLogSize(nvrtcProgram, size_t *)`
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLogSize(_: *mut c_void, size: Option<&mut usize>) -> c_int {
    write_output(size, LOG.len())
}

/// `nvrtcGetProgramLog(nvrtcProgram, char *)`
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLog(_: *mut c_void, log: Option<&mut [u8; LOG.len()]>) -> c_int {
    write_output(log, LOG)
}

/// `nvrtcGetCUBINSize(nvrtcProgram, size_t *)`
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBINSize(_: *mut c_void, size: Option<&mut usize>) -> c_int {
    write_output(size, CUBIN.len())
}

/// `nvrtcGetCUBIN(nvrtcProgram, char *)`
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBIN(_: *mut c_void, cubin: Option<&mut [u8; CUBIN.len()]>) -> c_int {
    write_output(cubin, CUBIN)
}

/// `nvrtcDestroyProgram(nvrtcProgram *)`
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcDestroyProgram(program: Option<&mut *mut c_void>) -> c_int {
    write_output(program, ptr::null_mut())
}
