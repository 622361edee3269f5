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

    /// Frees it now.
    pub(crate) fn free(mut self) -> Result<()> {
        let at = std::mem::replace(&mut self.at, ptr::null_mut());
        // SAFETY: `at` is null from now on, so the memory is freed once.
        Ok(unsafe { result::free_host(at) }?)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.at.is_null() {
            // SAFETY: callers have waited for the stream, so no copy uses the memory. A drop can't return an error.
            _ = unsafe { result::free_host(self.at) };
        }
    }
}

/// Copies a tensor on the device, in the order of the stream.
pub(crate) fn copy_on_device(dst: &Tensor, src: &Tensor, stream: Stream) -> Result<()> {
    let bytes = src.elements() * src.dtype().size();
    // SAFETY: both tensors have `bytes` bytes, and callers keep them until the stream is done.
    let copied = unsafe { sys::cuMemcpyDtoDAsync_v2(address(dst), address(src), bytes, stream) };
    Ok(copied.result()?)
}

/// Copies from pageable memory.
pub(crate) fn copy_pageable(to: sys::CUdeviceptr, bytes: &[u8], stream: Stream) -> Result<()> {
    // SAFETY: the driver has read pageable memory when it returns; the device memory at `to` has as many bytes.
    Ok(unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream) }.result()?)
}

/// Allocates memory of the driver's default pool, and frees it.
pub(crate) fn alloc_in_pool(bytes: usize, stream: Stream) -> Result<()> {
    free_in_pool(alloc_unfreed_in_pool(bytes, stream)?, stream)
}

pub(crate) fn alloc_unfreed_in_pool(bytes: usize, stream: Stream) -> Result<sys::CUdeviceptr> {
    // SAFETY: callers pass a live stream.
    Ok(unsafe { result::malloc_async(stream, bytes) }?)
}

fn free_in_pool(memory: sys::CUdeviceptr, stream: Stream) -> Result<()> {
    // SAFETY: the memory is of the pool, and no work uses it.
    Ok(unsafe { result::free_async(memory, stream) }?)
}

/// Allocates device memory, which lives until [`free`] or the end of the process.
pub(crate) fn alloc(bytes: usize) -> Result<sys::CUdeviceptr> {
    // SAFETY: any size is valid; the memory is written before it is read.
    Ok(unsafe { result::malloc_sync(bytes) }?)
}

pub(crate) fn free(memory: sys::CUdeviceptr) -> Result<()> {
    // SAFETY: callers own the memory, and no work uses it.
    Ok(unsafe { result::free_sync(memory) }?)
}

/// Makes a stream of this priority.
pub(crate) fn stream_with(priority: i32) -> Result<Stream> {
    Ok(result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority)?)
}

pub(crate) fn stream() -> Result<Stream> {
    Ok(result::stream::create(result::stream::StreamKind::NonBlocking)?)
}

/// Makes an event, which is never destroyed.
pub(crate) fn event() -> Result<()> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
    Ok(())
}

pub(crate) fn destroy(stream: Stream) -> Result<()> {
    // SAFETY: callers own the stream, and it has no work.
    Ok(unsafe { result::stream::destroy(stream) }?)
}

pub(crate) fn is_idle(stream: Stream) -> bool {
    // SAFETY: callers pass a live stream.
    unsafe { sys::cuStreamQuery(stream) == sys::CUresult::CUDA_SUCCESS }
}

/// Makes a stream wait until a word has a value. The driver refuses words in memory of pools.
pub(crate) fn wait_for(stream: Stream, words: sys::CUdeviceptr, index: u64, value: u32) -> Result<()> {
    // SAFETY: callers allocated the memory with more than `index` words, and keep it until the stream is done.
    Ok(unsafe { sys::cuStreamWaitValue32_v2(stream, words + 4 * index, value, 0) }.result()?)
}

/// Makes a stream write a word.
pub(crate) fn write(stream: Stream, words: sys::CUdeviceptr, index: u64, value: u32) -> Result<()> {
    // SAFETY: callers allocated the memory with more than `index` words, and keep it until the stream is done.
    Ok(unsafe { sys::cuStreamWriteValue32_v2(stream, words + 4 * index, value, 0) }.result()?)
}

pub(crate) fn export(memory: sys::CUdeviceptr) -> Result<()> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: `memory` is a live allocation, and `handle` is valid for writes.
    Ok(unsafe { sys::cuIpcGetMemHandle(&mut handle, memory) }.result()?)
}

pub(crate) fn load(cubin: &[u8]) -> Result<()> {
    let mut module = ptr::null_mut();
    // SAFETY: the image is a complete CUBIN, and `module` is valid for writes. The module is never unloaded.
    Ok(unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) }.result()?)
}
