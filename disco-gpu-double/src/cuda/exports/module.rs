//! Modules, and launches of what is in them.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::write_output;
use crate::cuda::abi::{Code, Function, Module, Stream};
use crate::cuda::kernel::params::{MAX_THREADS, Params};
use crate::cuda::kernel::{self, Grid};
use crate::cuda::{device, module, stream};

/// What machine code begins with.
const ELF: &[u8] = b"\x7fELF";
/// Blocks of any kernel that are on a multiprocessor at once.
const RESIDENT: c_int = 2;

/// `CUresult cuModuleLoadData(CUmodule *module, const void *image)`: of an object file. It is looked at no further.
///
/// # Safety
/// There are four bytes, or fewer, of which the last is zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(at: Option<&mut Module>, image: *const c_void) -> Code {
    let Some(at) = at.filter(|_| !image.is_null()) else { return Code::INVALID_VALUE };
    Code::of(device::begin_call("cuModuleLoadData").and_then(|device| {
        // SAFETY: no byte is read after one that is not as it should be, which a zero is not.
        let is_byte = |(i, byte): (usize, &u8)| unsafe { image.cast::<u8>().wrapping_add(i).read() } == *byte;
        if !ELF.iter().enumerate().all(is_byte) {
            return Err(Code::INVALID_IMAGE);
        }
        *at = module::load(device);
        Ok(())
    }))
}

/// `CUresult cuModuleUnload(CUmodule)`: it is unloaded even if the device has failed.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Module) -> Code {
    let device = device::begin_release_call("cuModuleUnload");
    Code::of(device.and_then(|device| module::unload(module).and_then(|()| device.check())))
}

/// `CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name)`
///
/// # Safety
/// The name ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(at: Option<&mut Function>, module: Module, name: *const c_char) -> Code {
    if name.is_null() {
        return Code::INVALID_VALUE;
    }
    // SAFETY: the caller's word.
    let name = unsafe { CStr::from_ptr(name) };
    Code::of(device::begin_call("cuModuleGetFunction").and_then(|_| write_output(at, module::function(module, name)?)))
}

/// `CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction, int blockSize, size_t
/// dynamicSMemSize)`: none of more threads than the kernel can have.
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
/// sharedMemBytes, CUstream, void **kernelParams, void **extra)`: a row of blocks, each a row of threads, all of the
/// function's device.
///
/// # Safety
/// The first of `params` is where the kernel's parameter is.
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
    // SAFETY: there is one, by the caller's word.
    let params = unsafe { params.read() };
    if params.is_null() {
        return Code::INVALID_VALUE;
    }
    // SAFETY: the caller's word.
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
