//! Functions of the CUDA driver, measured for comparison with Disco's.

#![allow(unsafe_code, reason = "the driver's own calls")]

use std::ffi::{CString, c_void};
use std::ptr;

use disco::nccl::cudarc::driver::{result, sys};
use disco::nccl::disco_dl::{Candidate, Library};
use disco::{Queue, Tensor};

use crate::ranks::Result;

/// A stream of the driver's.
pub(crate) type Stream = sys::CUstream;

/// The first of these functions that the driver lacks.
pub(crate) fn missing<'a>(functions: &[&'a str]) -> Result<Option<&'a str>> {
    let driver = Library::open(&Candidate::file("libcuda.so.1"))?;
    for function in functions {
        if driver.address(&CString::new(*function)?).is_none() {
            return Ok(Some(function));
        }
    }
    Ok(None)
}

/// The stream of a queue. It is valid as long as the queue.
pub(crate) fn stream_of(queue: &mut dyn Queue) -> Stream {
    queue.raw().cast()
}

/// The device address of a tensor.
pub(crate) fn address(tensor: &Tensor) -> sys::CUdeviceptr {
    tensor.data() as sys::CUdeviceptr
}

/// Pinned memory, which is freed when it is dropped.
pub(crate) struct Pinned {
    at: *mut c_void,
    bytes: usize,
}

impl Pinned {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        // SAFETY: any size is valid; the memory is written below before it is read.
        let at = unsafe { result::malloc_host(bytes, 0) }?;
        // SAFETY: the allocation has `bytes` bytes.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 1, bytes) };
        Ok(Self { at, bytes })
    }

    /// Copies it to a tensor of the same size, in the order of the stream.
    pub(crate) fn copy_to(&self, tensor: &Tensor, stream: Stream) -> Result<()> {
        // SAFETY: callers wait for the stream before they drop either side, and both have `bytes` bytes.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(address(tensor), self.at, self.bytes, stream) };
        Ok(copied.result()?)
    }

    /// Copies a tensor of the same size to it, in the order of the stream.
    pub(crate) fn copy_from(&mut self, tensor: &Tensor, stream: Stream) -> Result<()> {
        // SAFETY: callers wait for the stream before they drop either side, and both have `bytes` bytes.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(self.at, address(tensor), self.bytes, stream) };
        Ok(copied.result()?)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: callers have waited for the stream, so no copy uses the memory. A drop can't return an error.
        _ = unsafe { result::free_host(self.at) };
    }
}
