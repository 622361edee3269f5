//! Groups.

#![allow(unsafe_code, reason = "C functions")]

use crate::nccl::abi::Code;
use crate::nccl::group;

/// `ncclGroupStart()`
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Code {
    group::start();
    Code::SUCCESS
}

/// `ncclGroupEnd()`
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Code {
    Code::of(group::end())
}
