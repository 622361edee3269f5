//! Modules, and launches of their kernels.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::write_output;
use crate::cuda::abi::{Code, Function, Module, Stream};
use crate::cuda::kernel::params::{MAX_THREADS, Params};
use crate::cuda::kernel::{self, Grid};
use crate::cuda::{device, module, stream};

/// The magic number at the start of machine code.
const ELF: &[u8] = b"\x7fELF";
/// Blocks of any kernel that fit on a multiprocessor at once.
const RESIDENT: c_int = 2;

/// `CUresult cuModuleLoadData(CUmodule *module, const void *image)`: checks the first four bytes of the image only.
///
/// # Safety
/// `image` points to four readable bytes, or to fewer of which the last is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(at: Option<&mut Module>, image: *const c_void) -> Code {
    let Some(at) = at.filter(|_| !image.is_null()) else { return Code::INVALID_VALUE };
    Code::of(device::begin_call("cuModuleLoadData").and_then(|device| {
        // SAFETY: the bytes are read in order up to the first that differs from `ELF`, and no byte of `ELF` is 0.
        let is_byte = |(i, byte): (usize, &u8)| unsafe { image.cast::<u8>().wrapping_add(i).read() } == *byte;
        if !ELF.iter().enumerate().all(is_byte) {
            return Err(Code::INVALID_IMAGE);
        }
        *at = module::load(device);
        Ok(())
    }))
}

/// `CUresult cuModuleUnload(CUmodule)`: also unloads the module if the device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Module) -> Code {
    let device = device::begin_release_call("cuModuleUnload");
    Code::of(device.and_then(|device| module::unload(module).and_then(|()| device.check())))
}

/// `CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name)`
///
/// # Safety
/// The name ends with a NUL byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(at: Option<&mut Function>, module: Module, name: *const c_char) -> Code {
    if name.is_null() {
        return Code::INVALID_VALUE;
    }
    // SAFETY: the caller guarantees what `# Safety` requires.
    let name = unsafe { CStr::from_ptr(name) };
    Code::of(device::begin_call("cuModuleGetFunction").and_then(|_| write_output(at, module::function(module, name)?)))
}

/// `CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction, int blockSize, size_t
/// dynamicSMemSize)`: 0 blocks for more threads than a kernel can have.
#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Option<&mut c_int>,
    function: Function,
    threads: c_int,
    _: usize,
) -> Code {
    let resident = match usize::try_from(threads) {
        Ok(1..=MAX_THREADS) => RESIDENT,
        Ok(threads) if threads > 0 => 0,
        _ => return Code::INVALID_VALUE,
    };
    let device = device::begin_call("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    Code::of(device.and_then(|_| module::kernel(function)).and_then(|_| write_output(blocks, resident)))
}

/// `CUresult cuLaunchKernel(CUfunction, unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
/// sharedMemBytes, CUstream, void **kernelParams, void **extra)`: the grid and the blocks have one dimension, and the
/// current device, the function and the stream belong to one device.
///
/// # Safety
/// `params` is null or points to one pointer, which is null or points to the kernel's parameter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Function,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    _shared: c_uint,
    stream: Stream,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Code {
    if params.is_null() || !extra.is_null() || [blocks_y, blocks_z, threads_y, threads_z] != [1; 4] {
        return Code::INVALID_VALUE;
    }
    // SAFETY: the caller guarantees one readable pointer.
    let params = unsafe { params.read() };
    if params.is_null() {
        return Code::INVALID_VALUE;
    }
    // SAFETY: the caller guarantees what `# Safety` requires.
    let params = unsafe { params.cast::<Params>().read_unaligned() };
    Code::of(device::begin_call("cuLaunchKernel").and_then(|device| {
        let (kernel, home) = module::kernel(function)?;
        let stream = stream::find(stream, device)?;
        if [home.ordinal, stream.device().ordinal] != [device.ordinal; 2] {
            return Err(Code::INVALID_HANDLE);
        }
        let grid = Grid { blocks: blocks as usize, threads: threads as usize };
        stream.push(kernel::launch(kernel, grid, params, device)?);
        Ok(())
    }))
}
