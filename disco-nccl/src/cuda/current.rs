//! Which context is current on a thread.

#![allow(unsafe_code)]

use std::ptr;

use cudarc::driver::{CudaContext, result};
use disco_core::Result;

use super::error::check;

/// From now on it is this one. What cudarc remembers of failures elsewhere does not count.
pub(super) fn set(context: &CudaContext) -> Result<()> {
    // SAFETY: the context is there.
    check("cuCtxSetCurrent", unsafe { result::ctx::set_current(context.cu_ctx()) })
}

/// Does something with a context, and makes the one before, or none, current again.
pub(super) fn with_current(context: &CudaContext, work: impl FnOnce()) {
    let before = result::ctx::get_current().ok().flatten();
    if before == Some(context.cu_ctx()) {
        return work();
    }
    if let Err(error) = set(context) {
        tracing::warn!(%error, "something on a device is left behind");
        return;
    }
    work();
    // SAFETY: it was this thread's.
    _ = unsafe { result::ctx::set_current(before.unwrap_or(ptr::null_mut())) };
}
