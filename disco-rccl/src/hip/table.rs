//! The functions of HIP. Version 5 has all of them, except some of the optional ones.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `hipStream_t`
type Stream = *mut c_void;
/// `hipEvent_t`
type Event = *mut c_void;

disco_dl::functions! {
    /// Exported functions; they return `hipError_t` unless declared otherwise.
    pub(super) struct Table {
        /// `hipRuntimeGetVersion(int *version)`
        runtime_get_version: c"hipRuntimeGetVersion"(*mut c_int);
        /// `const char *hipGetErrorString(hipError_t)`
        get_error_string: c"hipGetErrorString"(c_int) -> *const c_char;
        /// `hipGetDeviceCount(int *count)`
        get_device_count: c"hipGetDeviceCount"(*mut c_int);
        /// `hipGetDevice(int *device)`
        get_device: c"hipGetDevice"(*mut c_int);
        /// `hipSetDevice(int device)`
        set_device: c"hipSetDevice"(c_int);
        /// `hipDeviceGetName(char *name, int bytes, hipDevice_t)`
        device_get_name: c"hipDeviceGetName"(*mut c_char, c_int, c_int);
        /// `hipDeviceGetPCIBusId(char *id, int bytes, int device)`
        device_get_pci_bus_id: c"hipDeviceGetPCIBusId"(*mut c_char, c_int, c_int);
        /// `hipMalloc(void **memory, size_t bytes)`
        malloc: c"hipMalloc"(*mut *mut c_void, usize);
        /// `hipFree(void *memory)`
        free: c"hipFree"(*mut c_void);
        /// `hipHostMalloc(void **memory, size_t bytes, unsigned flags)`
        host_malloc: c"hipHostMalloc"(*mut *mut c_void, usize, c_uint);
        /// `hipHostFree(void *memory)`
        host_free: c"hipHostFree"(*mut c_void);
        /// `hipMemsetAsync(void *memory, int value, size_t bytes, hipStream_t)`
        memset_async: c"hipMemsetAsync"(*mut c_void, c_int, usize, Stream);
        /// `hipMemcpyAsync(void *to, const void *from, size_t bytes, hipMemcpyKind, hipStream_t)`
        memcpy_async: c"hipMemcpyAsync"(*mut c_void, *const c_void, usize, c_int, Stream);
        /// `hipStreamCreateWithFlags(hipStream_t *, unsigned flags)`
        stream_create: c"hipStreamCreateWithFlags"(*mut Stream, c_uint);
        /// `hipStreamQuery(hipStream_t)`
        stream_query: c"hipStreamQuery"(Stream);
        /// `hipStreamDestroy(hipStream_t)`
        stream_destroy: c"hipStreamDestroy"(Stream);
        /// `hipEventCreateWithFlags(hipEvent_t *, unsigned flags)`
        event_create: c"hipEventCreateWithFlags"(*mut Event, c_uint);
        /// `hipEventRecord(hipEvent_t, hipStream_t)`
        event_record: c"hipEventRecord"(Event, Stream);
        /// `hipEventQuery(hipEvent_t)`
        event_query: c"hipEventQuery"(Event);
        /// `hipEventDestroy(hipEvent_t)`
        event_destroy: c"hipEventDestroy"(Event);
    }
    optional {
        /// `hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned flags)`
        stream_wait_event: c"hipStreamWaitEvent"(Stream, Event, c_uint);
        /// `hipExtMallocWithFlags(void **memory, size_t bytes, unsigned flags)`
        ext_malloc_with_flags: c"hipExtMallocWithFlags"(*mut *mut c_void, usize, c_uint);
        /// `hipDeviceCanAccessPeer(int *can, int device, int peer)`
        device_can_access_peer: c"hipDeviceCanAccessPeer"(*mut c_int, c_int, c_int);
        /// `hipDeviceEnablePeerAccess(int peer, unsigned flags)`
        device_enable_peer_access: c"hipDeviceEnablePeerAccess"(c_int, c_uint);
        /// `hipIpcGetMemHandle(hipIpcMemHandle_t *, void *memory)`
        ipc_get_mem_handle: c"hipIpcGetMemHandle"(*mut IpcHandle, *mut c_void);
        /// `hipIpcOpenMemHandle(void **memory, hipIpcMemHandle_t, unsigned flags)`
        ipc_open_mem_handle: c"hipIpcOpenMemHandle"(*mut *mut c_void, IpcHandle, c_uint);
        /// `hipIpcCloseMemHandle(void *memory)`
        ipc_close_mem_handle: c"hipIpcCloseMemHandle"(*mut c_void);
        /// `hipDeviceGetStreamPriorityRange(int *least, int *greatest)`
        device_get_stream_priority_range: c"hipDeviceGetStreamPriorityRange"(*mut c_int, *mut c_int);
        /// `hipStreamCreateWithPriority(hipStream_t *, unsigned flags, int priority)`
        stream_create_with_priority: c"hipStreamCreateWithPriority"(*mut Stream, c_uint, c_int);
        /// `hipStreamWriteValue32(hipStream_t, void *word, uint32_t value, unsigned flags)`
        stream_write_value: c"hipStreamWriteValue32"(Stream, *mut c_void, u32, c_uint);
        /// `hipStreamWaitValue32(hipStream_t, void *word, uint32_t value, unsigned flags, uint32_t mask)`
        stream_wait_value: c"hipStreamWaitValue32"(Stream, *mut c_void, u32, c_uint, u32);
    }
}

/// `hipIpcMemHandle_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

impl Table {
    /// The functions for peer memory and for its streams that this HIP lacks.
    pub(super) fn missing_for_peers(&self) -> Vec<&'static str> {
        let all = [
            ("hipStreamWaitEvent", self.stream_wait_event.is_some()),
            ("hipDeviceCanAccessPeer", self.device_can_access_peer.is_some()),
            ("hipDeviceEnablePeerAccess", self.device_enable_peer_access.is_some()),
            ("hipIpcGetMemHandle", self.ipc_get_mem_handle.is_some()),
            ("hipIpcOpenMemHandle", self.ipc_open_mem_handle.is_some()),
            ("hipIpcCloseMemHandle", self.ipc_close_mem_handle.is_some()),
            ("hipDeviceGetStreamPriorityRange", self.device_get_stream_priority_range.is_some()),
            ("hipStreamCreateWithPriority", self.stream_create_with_priority.is_some()),
            ("hipStreamWriteValue32", self.stream_write_value.is_some()),
            ("hipStreamWaitValue32", self.stream_wait_value.is_some()),
        ];
        all.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
    }
}
