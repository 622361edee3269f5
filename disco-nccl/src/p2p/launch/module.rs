//! A loaded module of kernels.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use disco_ccl::Runtime;
use disco_core::{DType, Result};

use crate::cuda::error::check;
use crate::p2p::kernels::{self, Algorithm, Grid, MAX_THREADS, Params};

/// The module with all kernels, loaded on a device. It is dropped when no kernel of it runs, on a thread where the
/// device's context is current.
pub(super) struct Module {
    module: sys::CUmodule,
    functions: Vec<(Algorithm, DType, Function)>,
    /// The kernel of [`kernels::BARRIER`].
    pub(super) barrier: Function,
}

/// A kernel of a module. The handle is valid while the module is loaded.
#[derive(Clone, Copy)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: the driver's functions accept module handles on any thread.
unsafe impl Send for Module {}
// SAFETY: the driver's functions accept module handles on several threads at a time.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a CUBIN for the device of the current context.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn load(cubin: &[u8]) -> Result<Self> {
        let mut module = ptr::null_mut();
        // SAFETY: `cubin` is a complete image, and `module` is writable.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()).result() })?;
        let mut loaded = Self { module, functions: Vec::new(), barrier: Function(ptr::null_mut()) };
        loaded.barrier = loaded.function(kernels::BARRIER)?;
        for (algorithm, dtype, name) in kernels::KERNELS {
            let function = loaded.function(name)?;
            loaded.functions.push((algorithm, dtype, function));
        }
        Ok(loaded)
    }

    /// The kernel of an algorithm and a dtype, if there is one.
    pub(super) fn find(&self, algorithm: Algorithm, dtype: DType) -> Option<Function> {
        self.functions.iter().find(|row| (row.0, row.1) == (algorithm, dtype)).map(|row| row.2)
    }

    /// How many blocks of [`MAX_THREADS`] threads fit on a multiprocessor at once, for the kernel with the fewest.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn max_blocks_per_multiprocessor(&self) -> Result<u32> {
        let mut fewest = u32::MAX;
        for (_, _, Function(function)) in &self.functions {
            let (mut blocks, threads) = (0, MAX_THREADS as i32);
            // SAFETY: the module of the function is loaded, and `blocks` is writable.
            let code = unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, *function, threads, 0) };
            check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code.result())?;
            fewest = fewest.min(blocks.unsigned_abs());
        }
        Ok(fewest)
    }

    fn function(&self, name: &CStr) -> Result<Function> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a NUL byte, and `function` is writable.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()) };
        check("cuModuleGetFunction", found.result()).map(|()| Function(function))
    }
}

impl Function {
    /// Launches the kernel on a runtime's stream. The runtime's device is current.
    ///
    /// # Safety
    /// The kernel's parameter is a [`Params`]. The addresses in it stay valid, and the module stays loaded, until the
    /// stream has executed the launch.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) unsafe fn launch(self, runtime: &Arc<Runtime>, grid: Grid, params: &Params) -> Result<()> {
        let stream: sys::CUstream = runtime.stream().cast();
        let mut arguments = [ptr::from_ref(params).cast_mut().cast()];
        // SAFETY: the driver copies the parameter during the call; the caller promises that its addresses and the
        // module stay valid.
        let launched = unsafe {
            sys::cuLaunchKernel(
                self.0,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", launched.result())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: `load` loaded the module, and no kernel of it runs any more.
        if let Err(error) = check("cuModuleUnload", unsafe { sys::cuModuleUnload(self.module).result() }) {
            tracing::debug!(%error, "a module of kernels stays loaded");
        }
    }
}

disco_core::format_as!(Debug for Module, |it| "<{} kernels>", it.functions.len());
