//! One device with one stream on it: memory, and copies in the order of the stream.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use disco_ccl::Runtime;
use disco_core::tensor::Storage;
use disco_core::{Device, DeviceKind, Result};

use super::error::check;
use super::memory::Pool;

/// A stream, with the device's primary context. Used on threads on which that is current.
pub(super) struct Stream {
    pool: Arc<Pool>,
    device: Device,
}

impl Stream {
    /// A new stream on a device that is there, whose primary context becomes current.
    pub(super) fn new(ordinal: usize) -> Result<Arc<Self>> {
        let device = Device::new(DeviceKind::Cuda, ordinal as i32);
        Ok(Arc::new(Self { pool: Pool::new(ordinal)?, device }))
    }

    /// Gives memory back that was dropped, where that needs no wait.
    pub(super) fn free_dropped(&self) {
        self.pool.free_dropped();
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.pool.stream
    }

    pub(super) fn cu_stream(&self) -> sys::CUstream {
        self.pool.stream.cu_stream()
    }

    /// Zeros in device memory, on the stream.
    pub(super) fn clear(&self, storage: &Storage) -> Result<()> {
        let address = storage.pointer() as sys::CUdeviceptr;
        // SAFETY: it is device memory of so many bytes.
        check("cuMemsetD8Async", unsafe { result::memset_d8_async(address, 0, storage.byte_len(), self.cu_stream()) })
    }

    /// Whether the driver reads or writes host memory when the stream gets there, rather than before its call returns: memory that
    /// somebody has registered with it.
    pub(super) fn is_pinned(&self, bytes: &[u8]) -> bool {
        let (mut kind, attribute) = (0u32, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
        // SAFETY: any address may be asked for, and the place has the attribute's size.
        let result = unsafe {
            sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, bytes.as_ptr() as sys::CUdeviceptr)
        };
        result == sys::CUresult::CUDA_SUCCESS
    }

    /// Host to device.
    ///
    /// # Safety
    /// `to` is as many bytes of device memory; `from` stays as it is until the stream has got there, if it [is
    /// pinned](Stream::is_pinned).
    pub(super) unsafe fn copy_in(&self, to: *mut u8, from: &[u8]) -> Result<()> {
        // SAFETY: as the caller promises.
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
        let uuid = check("cuDeviceGetUuid", self.pool.context.uuid())?;
        Ok(uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect())
    }

    fn enter(&self) -> Result<()> {
        check("cuCtxSetCurrent", self.pool.context.bind_to_thread())
    }

    fn stream(&self) -> disco_ccl::abi::Stream {
        self.cu_stream().cast::<c_void>()
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<Storage>> {
        self.pool.alloc(bytes, self.device)
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        let (to, from) = (to as sys::CUdeviceptr, from as sys::CUdeviceptr);
        // SAFETY: as the caller promises.
        check("cuMemcpyDtoDAsync", unsafe { result::memcpy_dtod_async(to, from, bytes, self.cu_stream()) })
    }

    fn is_idle(&self) -> Result<bool> {
        self.pool.is_idle()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<stream on {}>", self.device)
    }
}
