//! One device with one stream on it: memory, and copies in the order of the stream.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use disco_ccl::Runtime;
use disco_core::tensor::Storage;
use disco_core::{Device, DeviceKind, Result};

use super::error::check;

/// A stream, with the device's primary context. Used on threads on which that is current.
pub(super) struct Stream {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    device: Device,
}

/// Device memory. Freeing it waits, in the driver, for what uses it.
struct Block {
    context: Arc<CudaContext>,
    address: sys::CUdeviceptr,
}

impl Stream {
    /// A new stream on a device that is there, whose primary context becomes current.
    pub(super) fn new(ordinal: usize) -> Result<Arc<Self>> {
        let context = check("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
        let stream = check("cuStreamCreate", context.new_stream())?;
        let device = Device::new(DeviceKind::Cuda, ordinal as i32);
        Ok(Arc::new(Self { context, stream, device }))
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn cu_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// Zeros in device memory, on the stream.
    pub(super) fn clear(&self, storage: &Storage) -> Result<()> {
        let address = storage.pointer() as sys::CUdeviceptr;
        // SAFETY: it is device memory of so many bytes.
        check("cuMemsetD8Async", unsafe { result::memset_d8_async(address, 0, storage.byte_len(), self.cu_stream()) })
    }

    /// Host to device.
    ///
    /// # Safety
    /// `to` is as many bytes of device memory.
    pub(super) unsafe fn copy_in(&self, to: *mut u8, from: &[u8]) -> Result<()> {
        // SAFETY: the driver has read pageable memory when this returns; pinned memory is kept by its owner, as the caller says.
        check("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to as sys::CUdeviceptr, from, self.cu_stream()) })
    }

    /// Device to host.
    ///
    /// # Safety
    /// `from` is as many bytes of device memory; `to` stays, and nobody else has it, until the stream has got there.
    pub(super) unsafe fn copy_out(&self, to: &mut [u8], from: *const u8) -> Result<()> {
        // SAFETY: as the caller promises.
        check("cuMemcpyDtoHAsync", unsafe { result::memcpy_dtoh_async(to, from as sys::CUdeviceptr, self.cu_stream()) })
    }
}

impl Runtime for Stream {
    fn device(&self) -> Device {
        self.device
    }

    fn identity(&self) -> Result<String> {
        let uuid = check("cuDeviceGetUuid", self.context.uuid())?;
        Ok(uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect())
    }

    fn enter(&self) -> Result<()> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())
    }

    fn stream(&self) -> disco_ccl::abi::Stream {
        self.cu_stream().cast::<c_void>()
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<Storage>> {
        // SAFETY: whoever reads it writes it first.
        let address = check("cuMemAlloc", unsafe { result::malloc_sync(bytes.max(1)) })?;
        let owner = Box::new(Block { context: self.context.clone(), address });
        // SAFETY: it is so many bytes of this device's memory, until the block is dropped; any bytes are elements.
        Ok(unsafe { Storage::from_raw(address as *mut u8, bytes, self.device, owner) })
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        let (to, from) = (to as sys::CUdeviceptr, from as sys::CUdeviceptr);
        // SAFETY: as the caller promises.
        check("cuMemcpyDtoDAsync", unsafe { result::memcpy_dtod_async(to, from, bytes, self.cu_stream()) })
    }

    fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is there.
        match unsafe { sys::cuStreamQuery(self.cu_stream()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuStreamQuery", result.result()).map(|()| true),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let before = result::ctx::get_current().ok().flatten();
        let freed = check("cuCtxSetCurrent", self.context.bind_to_thread()).and_then(|()| {
            // SAFETY: it was allocated there, and is freed once.
            check("cuMemFree", unsafe { result::free_sync(self.address) })
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "device memory is left behind");
        }
        if let Some(before) = before {
            // SAFETY: it was this thread's.
            _ = unsafe { result::ctx::set_current(before) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<stream on {}>", self.device)
    }
}
