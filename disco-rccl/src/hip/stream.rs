//! HIP's functions for one device and one stream.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use disco_ccl::p2p::Peers;
use disco_ccl::{CopyKind, Driver, EventHandle, GraphFunctions, PoolFunctions, TimingFunctions};
use disco_core::{Device, DeviceKind, Result};

use super::library::Library;

/// `hipErrorOutOfMemory`
const OUT_OF_MEMORY: c_int = 2;
/// `hipErrorNotReady`
const NOT_READY: c_int = 600;
/// `hipStreamNonBlocking`
const NON_BLOCKING: c_uint = 1;
/// `hipEventDisableTiming`
const DISABLE_TIMING: c_uint = 2;

/// A stream of a device.
pub(super) struct Stream {
    pub(super) library: &'static Library,
    pub(super) ordinal: c_int,
    pub(super) stream: *mut c_void,
}

// SAFETY: HIP's functions accept stream handles on any thread.
unsafe impl Send for Stream {}
// SAFETY: HIP's functions accept stream handles on several threads at a time.
unsafe impl Sync for Stream {}

/// Calls a function of the table and checks its return code. `$name` is the name of the C function.
macro_rules! call {
    ($self:expr, $name:literal, optional $function:ident($($arg:expr),*)) => {{
        let library = $self.library;
        match library.table.$function {
            // SAFETY: the stream exists. Other arguments are valid by the contract of `Driver` or `Peers`, or point to
            // locals.
            Some(function) => library.check($name, unsafe { function($($arg),*) }),
            None => Err(disco_core::Error::missing(concat!("HIP lacks ", $name))),
        }
    }};
    ($self:expr, $name:literal, $function:ident($($arg:expr),*)) => {{
        let (library, function) = ($self.library, $self.library.table.$function);
        // SAFETY: the stream exists. Other arguments are valid by the contract of `Driver` or `Peers`, or point to
        // locals.
        library.check($name, unsafe { function($($arg),*) })
    }};
}

pub(super) use call;

impl Stream {
    /// Creates a stream on an existing device. The device becomes current on this thread.
    pub(super) fn new(ordinal: usize) -> Result<Self> {
        let mut stream = Self { library: Library::get()?, ordinal: ordinal as c_int, stream: ptr::null_mut() };
        stream.make_current()?;
        call!(stream, "hipStreamCreateWithFlags", stream_create(&mut stream.stream, NON_BLOCKING))?;
        Ok(stream)
    }

    fn is_done(&self, function: &'static str, code: c_int) -> Result<bool> {
        match code {
            NOT_READY => Ok(false),
            code => self.library.check(function, code).map(|()| true),
        }
    }
}

impl Driver for Stream {
    fn device(&self) -> Device {
        Device::new(DeviceKind::Rocm, self.ordinal)
    }

    fn identity(&self) -> Result<String> {
        self.library.text_of_device("hipDeviceGetPCIBusId", self.library.table.device_get_pci_bus_id, self.ordinal)
    }

    /// False: newer builds of RCCL reduce 8-bit floats on some devices, and no query tells on which.
    fn reduces_f8(&self) -> bool {
        false
    }

    fn stream(&self) -> disco_ccl::abi::Stream {
        self.stream
    }

    fn make_current(&self) -> Result<()> {
        call!(self, "hipSetDevice", set_device(self.ordinal))
    }

    fn with_current(&self, work: &mut dyn FnMut()) {
        let mut before = 0;
        let known = call!(self, "hipGetDevice", get_device(&mut before));
        match self.make_current() {
            Ok(()) => work(),
            Err(error) => {
                tracing::warn!(%error, "a resource of an AMD GPU is leaked: the device can't be made current")
            }
        }
        if known.is_ok() {
            _ = call!(self, "hipSetDevice", set_device(before));
        }
    }

    fn pools(&self) -> Result<PoolFunctions, String> {
        self.library.pools.map_err(|name| format!("HIP lacks {}", name.to_string_lossy()))
    }

    fn graphs(&self) -> Result<GraphFunctions, String> {
        self.library.graphs.map_err(|name| format!("HIP lacks {}", name.to_string_lossy()))
    }

    fn timing(&self) -> Result<TimingFunctions, String> {
        self.library.timing.map_err(|name| format!("HIP lacks {}", name.to_string_lossy()))
    }

    fn accessors(&self) -> Vec<i32> {
        let can_access = |peer: &c_int| {
            let (mut can, own) = (0, self.ordinal);
            let result = call!(self, "hipDeviceCanAccessPeer", optional device_can_access_peer(&mut can, *peer, own));
            *peer != own && result.is_ok() && can != 0
        };
        let mut count = 0;
        match call!(self, "hipGetDeviceCount", get_device_count(&mut count)) {
            Ok(()) => (0..count).filter(can_access).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn alloc(&self, bytes: usize) -> Result<Option<*mut u8>> {
        let mut memory = ptr::null_mut();
        // SAFETY: `memory` is writable.
        match unsafe { (self.library.table.malloc)(&mut memory, bytes) } {
            OUT_OF_MEMORY => Ok(None),
            code => self.library.check("hipMalloc", code).map(|()| Some(memory.cast())),
        }
    }

    unsafe fn free(&self, memory: *mut u8) -> Result<()> {
        call!(self, "hipFree", free(memory.cast()))
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8> {
        let mut memory = ptr::null_mut();
        call!(self, "hipHostMalloc", host_malloc(&mut memory, bytes, 0)).map(|()| memory.cast())
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<()> {
        call!(self, "hipHostFree", host_free(memory.cast()))
    }

    unsafe fn clear(&self, memory: *mut u8, bytes: usize) -> Result<()> {
        call!(self, "hipMemsetAsync", memset_async(memory.cast(), 0, bytes, self.stream))
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, kind: CopyKind) -> Result<()> {
        // `hipMemcpyKind`
        let kind = match kind {
            CopyKind::ToDevice => 1,
            CopyKind::ToHost => 2,
            CopyKind::OnDevice => 3,
        };
        call!(self, "hipMemcpyAsync", memcpy_async(to.cast(), from.cast(), bytes, kind, self.stream))
    }

    fn is_idle(&self) -> Result<bool> {
        // SAFETY: `self` owns the stream.
        self.is_done("hipStreamQuery", unsafe { (self.library.table.stream_query)(self.stream) })
    }

    fn create_event(&self) -> Result<EventHandle> {
        let mut event = ptr::null_mut();
        call!(self, "hipEventCreateWithFlags", event_create(&mut event, DISABLE_TIMING)).map(|()| EventHandle(event))
    }

    unsafe fn record_event(&self, event: EventHandle) -> Result<()> {
        call!(self, "hipEventRecord", event_record(event.0, self.stream))
    }

    unsafe fn is_event_complete(&self, event: EventHandle) -> Result<bool> {
        // SAFETY: the caller promises that the event exists.
        self.is_done("hipEventQuery", unsafe { (self.library.table.event_query)(event.0) })
    }

    unsafe fn destroy_event(&self, event: EventHandle) {
        _ = call!(self, "hipEventDestroy", event_destroy(event.0));
    }

    unsafe fn wait_event(&self, event: EventHandle) -> Result<()> {
        call!(self, "hipStreamWaitEvent", optional stream_wait_event(self.stream, event.0, 0))
    }

    fn new_stream(&self) -> Result<Box<dyn Driver>> {
        Ok(Box::new(Self::new(self.ordinal as usize)?))
    }

    fn new_priority_stream(&self) -> Result<Box<dyn Driver>> {
        let (mut least, mut greatest) = (0, 0);
        let mut stream = Self { library: self.library, ordinal: self.ordinal, stream: ptr::null_mut() };
        stream.make_current()?;
        call!(
            stream,
            "hipDeviceGetStreamPriorityRange",
            optional device_get_stream_priority_range(&mut least, &mut greatest)
        )?;
        call!(
            stream,
            "hipStreamCreateWithPriority",
            optional stream_create_with_priority(&mut stream.stream, NON_BLOCKING, greatest)
        )?;
        Ok(Box::new(stream))
    }

    fn peers(&self) -> Result<&dyn Peers, String> {
        let missing = self.library.table.missing_for_peers();
        if missing.is_empty() { Ok(self) } else { Err(format!("HIP lacks {}", missing.join(", "))) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            _ = call!(self, "hipStreamDestroy", stream_destroy(self.stream));
        }
    }
}

disco_core::format_as!(Debug for Stream, |it| "<stream on {}>", it.device());
