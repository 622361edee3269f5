//! The functions of libtvm_ffi that this crate calls.

use std::ffi::{c_int, c_void};

use crate::abi::{ByteArray, Version};

disco_dl::functions! {
    /// Functions of libtvm_ffi. A function with an `int` result returns 0, or another number if it has raised an error.
    #[derive(Debug)]
    pub struct Table {
        /// `void TVMFFIGetVersion(TVMFFIVersion *out)`
        get_version: c"TVMFFIGetVersion"(*mut Version) -> ();
        /// `int TVMFFIFunctionGetGlobal(const TVMFFIByteArray *name, TVMFFIObjectHandle *out)`; `out` is owned, or null
        /// if there is no such function
        function_get_global: c"TVMFFIFunctionGetGlobal"(*const ByteArray, *mut *mut c_void);
        /// `int TVMFFIFunctionSetGlobal(const TVMFFIByteArray *name, TVMFFIObjectHandle f, int allow_override)`
        function_set_global: c"TVMFFIFunctionSetGlobal"(*const ByteArray, *mut c_void, c_int);
        /// `void TVMFFIErrorMoveFromRaised(TVMFFIObjectHandle *out)`; `out` is owned, or null if no error was raised
        error_move_from_raised: c"TVMFFIErrorMoveFromRaised"(*mut *mut c_void) -> ();
        /// `void TVMFFIErrorSetRaised(TVMFFIObjectHandle error)`; `error` stays the caller's
        error_set_raised: c"TVMFFIErrorSetRaised"(*mut c_void) -> ();
    }
    optional {
        /// `int TVMFFIEnvSetStream(int32_t device_type, int32_t device_id, void *stream, void **original)`
        env_set_stream: c"TVMFFIEnvSetStream"(i32, i32, *mut c_void, *mut *mut c_void);
    }
}
