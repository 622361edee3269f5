//! Tables of functions that no header declares.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::c_void;
use std::ptr;

use crate::cuda::abi::{Code, Uuid};

/// `CUresult cuGetExportTable(const void **table, const CUuuid *id)`: the double has no tables. NVRTC 13 calls this
/// function without a check that the driver has it, and works without the table.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetExportTable(table: Option<&mut *const c_void>, id: Option<&Uuid>) -> Code {
    let (Some(table), Some(_)) = (table, id) else { return Code::INVALID_VALUE };
    *table = ptr::null();
    Code::NOT_FOUND
}
