//! Allocations and fills. An allocation of 0 bytes is a null pointer, which may be freed.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::cuda::abi::DevicePointer;
use crate::cuda::device::Device;
use crate::cuda::memory::{Kind, Span};
use crate::cuda::{capture, copy, memory, pinned, stream};
use crate::hip::abi::{Code, Stream};
use crate::hip::{current, last};

/// `hipError_t hipMalloc(void **pointer, size_t bytes)`
#[unsafe(no_mangle)]
pub extern "C" fn hipMalloc(at: Option<&mut *mut c_void>, bytes: usize) -> Code {
    last::note(allocate("hipMalloc", at, bytes, |device| {
        Ok(ptr::with_exposed_provenance_mut(memory::allocate(device, bytes)? as usize))
    }))
}

/// `hipError_t hipExtMallocWithFlags(void **pointer, size_t bytes, unsigned int flags)`: `hipDeviceMallocDefault`,
/// `hipDeviceMallocFinegrained`, `hipDeviceMallocUncached` (here the same as fine-grained) and `hipMallocSignalMemory`,
/// which needs a size of 8 bytes and is initialised with 1.
#[unsafe(no_mangle)]
pub extern "C" fn hipExtMallocWithFlags(at: Option<&mut *mut c_void>, bytes: usize, flags: c_uint) -> Code {
    let kind = match flags {
        0 => Kind::Coarse,
        1 | 3 => Kind::Fine,
        2 if bytes == 8 => Kind::Signal,
        _ => return last::note(Err(Code::INVALID_VALUE)),
    };
    last::note(allocate("hipExtMallocWithFlags", at, bytes, |device| {
        let pointer = memory::allocate_as(device, bytes, kind)?;
        if kind == Kind::Signal {
            Span::of(pointer, bytes)?.write(&1_u64.to_le_bytes());
        }
        Ok(ptr::with_exposed_provenance_mut(pointer as usize))
    }))
}

/// `hipError_t hipFree(void *)`: waits for the work of the device and of its peers. Also frees the memory if the device
/// has failed.
#[unsafe(no_mangle)]
pub extern "C" fn hipFree(pointer: *mut c_void) -> Code {
    last::note(current::current().and_then(|_| {
        capture::permit("hipFree")?;
        Ok(memory::free(pointer.addr() as DevicePointer)?)
    }))
}

/// `hipError_t hipHostMalloc(void **pointer, size_t bytes, unsigned int flags)`
#[unsafe(no_mangle)]
pub extern "C" fn hipHostMalloc(at: Option<&mut *mut c_void>, bytes: usize, _: c_uint) -> Code {
    last::note(allocate("hipHostMalloc", at, bytes, |_| Ok(pinned::allocate(bytes)?)))
}

/// `hipError_t hipHostFree(void *)`: waits for the work of the device and of its peers.
#[unsafe(no_mangle)]
pub extern "C" fn hipHostFree(pointer: *mut c_void) -> Code {
    last::note(current::current().and_then(|device| {
        if pointer.is_null() {
            return Ok(());
        }
        capture::permit("hipHostFree")?;
        // An error of the device's work does not make the free fail.
        _ = device.synchronize_with_peers();
        Ok(pinned::free(pointer)?)
    }))
}

/// `hipError_t hipMemsetAsync(void *to, int byte, size_t count, hipStream_t)`
#[unsafe(no_mangle)]
pub extern "C" fn hipMemsetAsync(to: *mut c_void, byte: c_int, count: usize, stream: Stream) -> Code {
    last::note(current::begin_call("hipMemsetAsync").and_then(|device| {
        let stream = stream::find(stream, device)?;
        // Only the lowest byte of the value is used, as in `memset`.
        Ok(copy::submit(&stream, count, || copy::fill(to.addr() as DevicePointer, byte as u8, count))?)
    }))
}

fn allocate(
    function: &str,
    at: Option<&mut *mut c_void>,
    bytes: usize,
    allocate: impl FnOnce(&'static Device) -> Result<*mut c_void, Code>,
) -> Result<(), Code> {
    let at = at.ok_or(Code::INVALID_VALUE)?;
    let device = current::begin_call(function)?;
    *at = if bytes == 0 { ptr::null_mut() } else { allocate(device)? };
    Ok(())
}
