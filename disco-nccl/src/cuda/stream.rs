//! The driver's calls, on one device with one stream on it.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use disco_ccl::p2p::Peers;
use disco_ccl::{Driver, GraphFunctions, Mark, PoolFunctions, Way};
use disco_core::{Device, DeviceKind, Error, Result};

use super::error::check;
use super::{current, device, driver, peers};

/// A stream on a device, with the device's primary context.
pub(super) struct Stream {
    context: ManuallyDrop<Arc<CudaContext>>,
    stream: ManuallyDrop<Arc<CudaStream>>,
    device: Device,
    /// Its device can make sure that what peers wrote before a word is there when the word is.
    pub(super) flushes_remote_writes: bool,
}

impl Stream {
    /// A new stream on a device that is there, whose primary context becomes current.
    pub(super) fn new(ordinal: usize) -> Result<Self> {
        Self::make(ordinal, |context| check("cuStreamCreate", context.new_stream()))
    }

    fn make(ordinal: usize, create: impl FnOnce(&Arc<CudaContext>) -> Result<Arc<CudaStream>>) -> Result<Self> {
        let context = check("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
        // With tracking on, making the first stream waits for all that the device does.
        // SAFETY: nothing is tracked yet.
        unsafe { context.disable_event_tracking() };
        let stream = create(&context);
        // SAFETY: as above.
        unsafe { context.enable_event_tracking() };
        let stream = ManuallyDrop::new(stream?);
        let device = Device::new(DeviceKind::Cuda, ordinal as i32);
        let flushes_remote_writes = device::attribute_of(ordinal, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
        let flushes_remote_writes = flushes_remote_writes.is_ok_and(|flushes_remote_writes| flushes_remote_writes != 0);
        Ok(Self { context: ManuallyDrop::new(context), stream, device, flushes_remote_writes })
    }

    /// The stream, as cudarc has it.
    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Its device's number.
    pub(super) fn ordinal(&self) -> usize {
        self.device.ordinal as usize
    }

    pub(super) fn cu_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }
}

impl Driver for Stream {
    fn device(&self) -> Device {
        self.device
    }

    fn identity(&self) -> Result<String> {
        let uuid = check("cuDeviceGetUuid", self.context.uuid())?;
        Ok(uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect())
    }

    fn reduces_f8(&self) -> bool {
        self.context.compute_capability().is_ok_and(|(major, _)| major >= 9)
    }

    fn stream(&self) -> disco_ccl::abi::Stream {
        self.cu_stream().cast::<c_void>()
    }

    fn enter(&self) -> Result<()> {
        current::set(&self.context)
    }

    fn visit(&self, work: &mut dyn FnMut()) {
        current::with_current(&self.context, work);
    }

    fn pools(&self) -> Result<PoolFunctions, String> {
        let driver = driver::get().map_err(|unavailable| unavailable.to_string())?;
        driver.pools.map_err(|name| format!("the CUDA driver lacks {}", name.to_string_lossy()))
    }

    fn graphs(&self) -> Result<GraphFunctions, String> {
        let driver = driver::get().map_err(|unavailable| unavailable.to_string())?;
        driver.graphs.map_err(|name| format!("the CUDA driver lacks {}", name.to_string_lossy()))
    }

    fn accessors(&self) -> Vec<i32> {
        peers::accessors(self.device.ordinal)
    }

    fn alloc(&self, bytes: usize) -> Result<Option<*mut u8>> {
        // SAFETY: whoever reads it writes it first.
        match unsafe { result::malloc_sync(bytes) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            address => check("cuMemAlloc", address).map(|address| Some(address as *mut u8)),
        }
    }

    unsafe fn free(&self, memory: *mut u8) -> Result<()> {
        // SAFETY: as the caller promises.
        check("cuMemFree", unsafe { result::free_sync(memory as sys::CUdeviceptr) })
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8> {
        // SAFETY: whoever reads it writes it first.
        check("cuMemHostAlloc", unsafe { result::malloc_host(bytes, 0) }).map(<*mut c_void>::cast)
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<()> {
        // SAFETY: as the caller promises.
        check("cuMemFreeHost", unsafe { result::free_host(memory.cast()) })
    }

    unsafe fn clear(&self, memory: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: as the caller promises.
        let cleared = unsafe { result::memset_d8_async(memory as sys::CUdeviceptr, 0, bytes, self.cu_stream()) };
        check("cuMemsetD8Async", cleared)
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, way: Way) -> Result<()> {
        let (stream, on) = (self.cu_stream(), |address: *const u8| address as sys::CUdeviceptr);
        match way {
            // SAFETY: as the caller promises.
            Way::ToDevice => check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(on(to), from.cast(), bytes, stream).result()
            }),
            // SAFETY: as above.
            Way::ToHost => check("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(to.cast(), on(from), bytes, stream).result()
            }),
            // SAFETY: as above.
            Way::OnDevice => check("cuMemcpyDtoDAsync", unsafe {
                sys::cuMemcpyDtoDAsync_v2(on(to), on(from), bytes, stream).result()
            }),
        }
    }

    fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is there.
        is_done("cuStreamQuery", unsafe { sys::cuStreamQuery(self.cu_stream()) })
    }

    fn mark(&self) -> Result<Mark> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        check("cuEventCreate", event).map(|event| Mark(event.cast()))
    }

    unsafe fn record(&self, mark: Mark) -> Result<()> {
        // SAFETY: as the caller promises.
        check("cuEventRecord", unsafe { result::event::record(mark.0.cast(), self.cu_stream()) })
    }

    unsafe fn has_passed(&self, mark: Mark) -> Result<bool> {
        // SAFETY: as the caller promises.
        is_done("cuEventQuery", unsafe { sys::cuEventQuery(mark.0.cast()) })
    }

    unsafe fn destroy(&self, mark: Mark) {
        // SAFETY: as the caller promises.
        _ = unsafe { result::event::destroy(mark.0.cast()) };
    }

    unsafe fn wait_for(&self, mark: Mark) -> Result<()> {
        // SAFETY: as the caller promises; 0 is the one flag.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.cu_stream(), mark.0.cast(), 0).result() })
    }

    fn beside(&self) -> Result<Box<dyn Driver>> {
        Ok(Box::new(Self::new(self.ordinal())?))
    }

    fn urgent(&self) -> Result<Box<dyn Driver>> {
        driver::require(driver::PEER_FUNCTIONS).map_err(Error::missing)?;
        let (_, greatest) = check("cuCtxGetStreamPriorityRange", result::stream::get_priority_range())?;
        let create = |context: &Arc<CudaContext>| context.new_stream_with_priority(greatest);
        Ok(Box::new(Self::make(self.ordinal(), |context| check("cuStreamCreateWithPriority", create(context)))?))
    }

    fn peers(&self) -> Result<&dyn Peers, String> {
        driver::require(driver::PEER_FUNCTIONS).map(|()| self as &dyn Peers)
    }
}

fn is_done(function: &'static str, result: sys::CUresult) -> Result<bool> {
    match result {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        result => check(function, result.result()).map(|()| true),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let context = (*self.context).clone();
        // These make the context current, too.
        current::with_current(&context, || {
            // SAFETY: nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.stream) };
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.context) };
        });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<stream on {}>", self.device)
    }
}
