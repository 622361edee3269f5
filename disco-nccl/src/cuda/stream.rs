//! The driver's functions for one device and one stream.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use disco_ccl::p2p::Peers;
use disco_ccl::{CopyKind, Driver, EventHandle, GraphFunctions, PoolFunctions, TimingFunctions};
use disco_core::{Device, DeviceKind, Error, Result};

use super::error::check;
use super::{attributes, current, driver};

/// A stream of a device, and a reference to the device's primary context.
pub(super) struct Stream {
    context: ManuallyDrop<Arc<CudaContext>>,
    stream: ManuallyDrop<Arc<CudaStream>>,
    device: Device,
    /// `CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES`: a wait for a word can make the peer's earlier writes visible.
    pub(super) flushes_remote_writes: bool,
}

impl Stream {
    /// Creates a stream on an existing device. The device's primary context becomes current on this thread.
    pub(super) fn new(ordinal: usize) -> Result<Self> {
        Self::make(ordinal, |context| check("cuStreamCreate", context.new_stream()))
    }

    fn make(ordinal: usize, create: impl FnOnce(&Arc<CudaContext>) -> Result<Arc<CudaStream>>) -> Result<Self> {
        let context = check("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
        // With event tracking, cudarc waits for all work of the device when it creates the first stream.
        // SAFETY: no cudarc allocation of this context exists yet whose accesses would have to be tracked.
        unsafe { context.disable_event_tracking() };
        let stream = create(&context);
        // SAFETY: this restores cudarc's default.
        unsafe { context.enable_event_tracking() };
        let stream = ManuallyDrop::new(stream?);
        let device = Device::new(DeviceKind::Cuda, ordinal as i32);
        let flushes_remote_writes = attributes::attribute_of(ordinal, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
        let flushes_remote_writes = flushes_remote_writes.is_ok_and(|flushes_remote_writes| flushes_remote_writes != 0);
        Ok(Self { context: ManuallyDrop::new(context), stream, device, flushes_remote_writes })
    }

    /// The stream of cudarc.
    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The ordinal of the stream's device.
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

    fn make_current(&self) -> Result<()> {
        current::set(&self.context)
    }

    fn with_current(&self, work: &mut dyn FnMut()) {
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

    fn timing(&self) -> Result<TimingFunctions, String> {
        let driver = driver::get().map_err(|unavailable| unavailable.to_string())?;
        driver.timing.map_err(|name| format!("the CUDA driver lacks {}", name.to_string_lossy()))
    }

    fn accessors(&self) -> Vec<i32> {
        attributes::accessors(self.device.ordinal)
    }

    fn alloc(&self, bytes: usize) -> Result<Option<*mut u8>> {
        // SAFETY: the memory is uninitialised; callers write it before they read it.
        match unsafe { result::malloc_sync(bytes) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            address => check("cuMemAlloc", address).map(|address| Some(address as *mut u8)),
        }
    }

    unsafe fn free(&self, memory: *mut u8) -> Result<()> {
        // SAFETY: the caller promises that `alloc` returned `memory` and that no work uses it any more.
        check("cuMemFree", unsafe { result::free_sync(memory as sys::CUdeviceptr) })
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8> {
        // SAFETY: the memory is uninitialised; callers write it before they read it.
        check("cuMemHostAlloc", unsafe { result::malloc_host(bytes, 0) }).map(<*mut c_void>::cast)
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<()> {
        // SAFETY: the caller promises that `alloc_pinned` returned `memory` and that no work uses it any more.
        check("cuMemFreeHost", unsafe { result::free_host(memory.cast()) })
    }

    unsafe fn clear(&self, memory: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller promises that the stream's device can write `bytes` bytes at `memory` until the stream has
        // done so.
        let cleared = unsafe { result::memset_d8_async(memory as sys::CUdeviceptr, 0, bytes, self.cu_stream()) };
        check("cuMemsetD8Async", cleared)
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, kind: CopyKind) -> Result<()> {
        let (stream, on) = (self.cu_stream(), |address: *const u8| address as sys::CUdeviceptr);
        match kind {
            // SAFETY: the caller promises that both ranges are valid until the stream has made the copy.
            CopyKind::ToDevice => check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(on(to), from.cast(), bytes, stream).result()
            }),
            // SAFETY: the caller promises that both ranges are valid until the stream has made the copy.
            CopyKind::ToHost => check("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(to.cast(), on(from), bytes, stream).result()
            }),
            // SAFETY: the caller promises that both ranges are valid until the stream has made the copy.
            CopyKind::OnDevice => check("cuMemcpyDtoDAsync", unsafe {
                sys::cuMemcpyDtoDAsync_v2(on(to), on(from), bytes, stream).result()
            }),
        }
    }

    fn is_idle(&self) -> Result<bool> {
        // SAFETY: `self` owns the stream.
        is_done("cuStreamQuery", unsafe { sys::cuStreamQuery(self.cu_stream()) })
    }

    fn create_event(&self) -> Result<EventHandle> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        check("cuEventCreate", event).map(|event| EventHandle(event.cast()))
    }

    unsafe fn record_event(&self, event: EventHandle) -> Result<()> {
        // SAFETY: the caller promises that the event exists and belongs to this device.
        check("cuEventRecord", unsafe { result::event::record(event.0.cast(), self.cu_stream()) })
    }

    unsafe fn is_event_complete(&self, event: EventHandle) -> Result<bool> {
        // SAFETY: the caller promises that the event exists.
        is_done("cuEventQuery", unsafe { sys::cuEventQuery(event.0.cast()) })
    }

    unsafe fn destroy_event(&self, event: EventHandle) {
        // SAFETY: the caller promises that the event exists and is not used again.
        _ = unsafe { result::event::destroy(event.0.cast()) };
    }

    unsafe fn wait_event(&self, event: EventHandle) -> Result<()> {
        // SAFETY: the caller promises that the event exists; the function requires flags of 0.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.cu_stream(), event.0.cast(), 0).result() })
    }

    fn new_stream(&self) -> Result<Box<dyn Driver>> {
        Ok(Box::new(Self::new(self.ordinal())?))
    }

    fn new_priority_stream(&self) -> Result<Box<dyn Driver>> {
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
        // cudarc makes the context current when it drops these values; the thread's previous context is restored
        // afterwards.
        current::with_current(&context, || {
            // SAFETY: the field is not used after this drop.
            unsafe { ManuallyDrop::drop(&mut self.stream) };
            // SAFETY: the field is not used after this drop; `context` keeps the context alive.
            unsafe { ManuallyDrop::drop(&mut self.context) };
        });
    }
}

disco_core::format_as!(Debug for Stream, |it| "<stream on {}>", it.device);
