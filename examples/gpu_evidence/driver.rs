//! The driver's own calls that are measured beside ours.

#![allow(unsafe_code, reason = "the driver's own calls")]

use std::ffi::{CString, c_void};
use std::ptr;

use disco::nccl::cudarc::driver::{result, sys};
use disco::{Queue, Tensor};
use disco_dl::{Candidate, Library};

use crate::seat::Result;

/// A stream of the driver's.
pub(crate) type Stream = sys::CUstream;

/// The first of these functions that the driver does not have.
pub(crate) fn missing<'a>(functions: &[&'a str]) -> Result<Option<&'a str>> {
    let driver = Library::open(&Candidate::file("libcuda.so.1"))?;
    for function in functions {
        if driver.address(&CString::new(*function)?).is_none() {
            return Ok(Some(function));
        }
    }
    Ok(None)
}

/// The stream of a queue, which lives as long.
pub(crate) fn stream_of(queue: &mut dyn Queue) -> Stream {
    queue.raw().cast()
}

/// A tensor's address.
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
        // SAFETY: the driver allocates memory, which is written below before it is read.
        let at = unsafe { result::malloc_host(bytes, 0) }?;
        // SAFETY: there are so many bytes.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 1, bytes) };
        Ok(Self { at, bytes })
    }

    /// Copies it to a tensor that is as large, in the order of the stream.
    pub(crate) fn copy_to(&self, tensor: &Tensor, stream: Stream) -> Result<()> {
        // SAFETY: both are there until the stream is done, as callers wait for it.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(address(tensor), self.at, self.bytes, stream) };
        Ok(copied.result()?)
    }

    /// Copies a tensor that is as large to it, in the order of the stream.
    pub(crate) fn copy_from(&mut self, tensor: &Tensor, stream: Stream) -> Result<()> {
        // SAFETY: both are there until the stream is done, as callers wait for it.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(self.at, address(tensor), self.bytes, stream) };
        Ok(copied.result()?)
    }

    /// Frees it now.
    pub(crate) fn free(mut self) -> Result<()> {
        let at = std::mem::replace(&mut self.at, ptr::null_mut());
        // SAFETY: it is freed once, since the place is empty from now on.
        Ok(unsafe { result::free_host(at) }?)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.at.is_null() {
            // SAFETY: nothing uses it any more. There is nobody to tell of an error.
            _ = unsafe { result::free_host(self.at) };
        }
    }
}

/// Copies a tensor on the device, in the order of the stream.
pub(crate) fn copy_on_device(dst: &Tensor, src: &Tensor, stream: Stream) -> Result<()> {
    let bytes = src.elements() * src.dtype().size();
    // SAFETY: both tensors are as large, and stay until the stream is done.
    let copied = unsafe { sys::cuMemcpyDtoDAsync_v2(address(dst), address(src), bytes, stream) };
    Ok(copied.result()?)
}

/// Copies from pageable memory.
pub(crate) fn copy_pageable(to: sys::CUdeviceptr, bytes: &[u8], stream: Stream) -> Result<()> {
    // SAFETY: the driver has read pageable memory when it returns; the device's is as large.
    Ok(unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream) }.result()?)
}

/// Allocates and frees by the driver's pools.
pub(crate) fn alloc_in_pool(bytes: usize, stream: Stream) -> Result<()> {
    free_in_pool(take_from_pool(bytes, stream)?, stream)
}

pub(crate) fn take_from_pool(bytes: usize, stream: Stream) -> Result<sys::CUdeviceptr> {
    // SAFETY: the stream is there.
    Ok(unsafe { result::malloc_async(stream, bytes) }?)
}

fn free_in_pool(memory: sys::CUdeviceptr, stream: Stream) -> Result<()> {
    // SAFETY: it is memory of the pool, which nothing uses.
    Ok(unsafe { result::free_async(memory, stream) }?)
}

/// Device memory that stays until the process ends, or [`free`].
pub(crate) fn take(bytes: usize) -> Result<sys::CUdeviceptr> {
    // SAFETY: the driver allocates memory; nothing reads it before it is written.
    Ok(unsafe { result::malloc_sync(bytes) }?)
}

pub(crate) fn free(memory: sys::CUdeviceptr) -> Result<()> {
    // SAFETY: callers own it, and nothing uses it.
    Ok(unsafe { result::free_sync(memory) }?)
}

/// A stream of this priority.
pub(crate) fn stream_with(priority: i32) -> Result<Stream> {
    Ok(result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority)?)
}

pub(crate) fn stream() -> Result<Stream> {
    Ok(result::stream::create(result::stream::StreamKind::NonBlocking)?)
}

/// An event, which stays.
pub(crate) fn event() -> Result<()> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
    Ok(())
}

pub(crate) fn destroy(stream: Stream) -> Result<()> {
    // SAFETY: callers own it, and it has no work.
    Ok(unsafe { result::stream::destroy(stream) }?)
}

pub(crate) fn is_idle(stream: Stream) -> bool {
    // SAFETY: the stream is there.
    unsafe { sys::cuStreamQuery(stream) == sys::CUresult::CUDA_SUCCESS }
}

/// Has a stream wait until a tensor's word has a value.
pub(crate) fn wait_for(stream: Stream, words: &Tensor, index: u64, value: u32) -> Result<()> {
    // SAFETY: the word is one of the tensor's, which stays until the stream is done.
    Ok(unsafe { sys::cuStreamWaitValue32_v2(stream, address(words) + 4 * index, value, 0) }.result()?)
}

/// Has a stream write a tensor's word.
pub(crate) fn write(stream: Stream, words: &Tensor, index: u64, value: u32) -> Result<()> {
    // SAFETY: the word is one of the tensor's, which stays until the stream is done.
    Ok(unsafe { sys::cuStreamWriteValue32_v2(stream, address(words) + 4 * index, value, 0) }.result()?)
}

pub(crate) fn export(memory: sys::CUdeviceptr) -> Result<()> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the memory is there, and so is the handle's place.
    Ok(unsafe { sys::cuIpcGetMemHandle(&mut handle, memory) }.result()?)
}

pub(crate) fn load(cubin: &[u8]) -> Result<()> {
    let mut module = ptr::null_mut();
    // SAFETY: the image is whole, and so is the place for the module, which stays.
    Ok(unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) }.result()?)
}
