//! Kernels as the driver has loaded them for a device.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use disco_ccl::Runtime;
use disco_core::{DType, Result};

use crate::cuda::error::check;
use crate::p2p::kernels::{self, Algorithm, Grid, MAX_THREADS, Params};

/// All kernels, on the device of a runtime. Dropped on a thread on which that is current, when none is under way.
pub(super) struct Module {
    module: sys::CUmodule,
    functions: Vec<(Algorithm, DType, Function)>,
    /// The one that only meets.
    pub(super) barrier: Function,
}

/// A kernel of a module.
#[derive(Clone, Copy)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: the driver takes its module on any thread.
unsafe impl Send for Module {}
// SAFETY: as above, also of several at a time.
unsafe impl Sync for Module {}

impl Module {
    /// From machine code for the device, which is current.
    ///
    /// # Errors
    /// The driver's own.
    pub(super) fn load(cubin: &[u8]) -> Result<Self> {
        let mut module = ptr::null_mut();
        // SAFETY: the image is whole, and the place is there.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()).result() })?;
        let mut loaded = Self { module, functions: Vec::new(), barrier: Function(ptr::null_mut()) };
        loaded.barrier = loaded.function(kernels::BARRIER)?;
        for (algorithm, dtype, name) in kernels::KERNELS {
            let function = loaded.function(name)?;
            loaded.functions.push((algorithm, dtype, function));
        }
        Ok(loaded)
    }

    /// The kernel that sums elements of this type so.
    pub(super) fn find(&self, algorithm: Algorithm, dtype: DType) -> Option<Function> {
        self.functions.iter().find(|row| (row.0, row.1) == (algorithm, dtype)).map(|row| row.2)
    }

    /// How many blocks of any kernel a multiprocessor has room for, each as large as can be.
    ///
    /// # Errors
    /// The driver's own.
    pub(super) fn max_blocks_per_multiprocessor(&self) -> Result<u32> {
        let mut fewest = u32::MAX;
        for (_, _, Function(function)) in &self.functions {
            let (mut blocks, threads) = (0, MAX_THREADS as i32);
            // SAFETY: the kernel is there, and so is the place.
            let asked = unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, *function, threads, 0) };
            check("cuOccupancyMaxActiveBlocksPerMultiprocessor", asked.result())?;
            fewest = fewest.min(blocks.unsigned_abs());
        }
        Ok(fewest)
    }

    fn function(&self, name: &CStr) -> Result<Function> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is there, the name ends with a zero, and the place is there.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()) };
        check("cuModuleGetFunction", found.result()).map(|()| Function(function))
    }
}

impl Function {
    /// Launches it on a runtime's stream, whose device is current.
    ///
    /// # Safety
    /// It is a kernel of these parameters, whose addresses stay until the stream got there, and its module is loaded.
    ///
    /// # Errors
    /// The driver's own.
    pub(super) unsafe fn launch(self, runtime: &Arc<Runtime>, grid: Grid, params: &Params) -> Result<()> {
        let stream: sys::CUstream = runtime.stream().cast();
        let mut arguments = [ptr::from_ref(params).cast_mut().cast()];
        // SAFETY: the driver copies the one parameter; the rest is as the caller promises.
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
        // SAFETY: it was loaded here, and no kernel of it is under way.
        if let Err(error) = check("cuModuleUnload", unsafe { sys::cuModuleUnload(self.module).result() }) {
            tracing::debug!(%error, "kernels stay loaded");
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} kernels>", self.functions.len())
    }
}
