//! The current CUDA context of a thread.

#![allow(unsafe_code)]

use std::ptr;

use cudarc::driver::{CudaContext, result};
use disco_core::Result;

use super::error::check;

/// Makes `context` the current context of this thread. Unlike `CudaContext::bind_to_thread`, it does not return errors
/// that cudarc has recorded for earlier calls.
pub(super) fn set(context: &CudaContext) -> Result<()> {
    // SAFETY: `context` retains the primary context, so the handle is valid.
    check("cuCtxSetCurrent", unsafe { result::ctx::set_current(context.cu_ctx()) })
}

/// Runs `work` while `context` is current, then restores the thread's previous context.
pub(super) fn with_current(context: &CudaContext, work: impl FnOnce()) {
    let before = result::ctx::get_current().ok().flatten();
    if before == Some(context.cu_ctx()) {
        return work();
    }
    if let Err(error) = set(context) {
        tracing::warn!(%error, "a resource of a CUDA device is leaked: its context can't be made current");
        return;
    }
    work();
    // SAFETY: `before` was this thread's current context; null means no context.
    _ = unsafe { result::ctx::set_current(before.unwrap_or(ptr::null_mut())) };
}
