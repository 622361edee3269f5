//! The worker's stream as the stream on which functions of libraries launch.

use std::ffi::c_void;

use disco_core::{Device, WorkerContext};

use crate::library::TvmFfi;

/// Sets back the stream of this thread when it is dropped.
pub(crate) struct Entered {
    device: Device,
    before: *mut c_void,
    tvm: &'static TvmFfi,
}

/// Makes the worker's stream that of this thread for libraries, if the worker has a device and libtvm_ffi is in use.
pub(crate) fn enter(ctx: &mut WorkerContext) -> Option<Entered> {
    let device = ctx.device();
    if device.is_host() {
        return None;
    }
    let tvm = TvmFfi::opened()?;
    let before = tvm.set_stream((device.kind.dlpack(), device.ordinal), ctx.queue().raw())?;
    Some(Entered { device, before, tvm })
}

impl Drop for Entered {
    fn drop(&mut self) {
        _ = self.tvm.set_stream((self.device.kind.dlpack(), self.device.ordinal), self.before);
    }
}
