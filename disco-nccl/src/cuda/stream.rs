//! One device with one stream on it: memory, and copies in the order of the stream.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use disco_ccl::Runtime;
use disco_core::tensor::Storage;
use disco_core::{Device, DeviceKind, Result};

use super::current;
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

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.pool.stream
    }

    pub(super) fn cu_stream(&self) -> sys::CUstream {
        self.pool.stream.cu_stream()
    }

    /// Zeros in device memory, on the stream.
    pub(super) fn clear(&self, storage: &Storage) -> Result<()> {
        if storage.byte_len() == 0 {
            return Ok(());
        }
        let address = storage.pointer() as sys::CUdeviceptr;
        // SAFETY: it is device memory of so many bytes.
        check("cuMemsetD8Async", unsafe { result::memset_d8_async(address, 0, storage.byte_len(), self.cu_stream()) })
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

    fn reduces_f8(&self) -> bool {
        self.pool.context.compute_capability().is_ok_and(|(major, _)| major >= 9)
    }

    fn enter(&self) -> Result<()> {
        current::set(&self.pool.context)
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
