//! Tables of functions that no header declares.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_void;
use std::ptr;

use crate::cuda::abi::{Code, Uuid};

/// `CUresult cuGetExportTable(const void **table, const CUuuid *id)`: the double has no such table. NVRTC 13 asks for one, without a look
/// at whether the driver has this function, and does without the table.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetExportTable(table: Option<&mut *const c_void>, id: Option<&Uuid>) -> Code {
    let (Some(table), Some(_)) = (table, id) else { return Code::INVALID_VALUE };
    *table = ptr::null();
    Code::NOT_FOUND
}
