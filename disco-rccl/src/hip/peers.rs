//! HIP's functions for memory that several devices access. They are tested with a test double, not on AMD GPUs.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use disco_ccl::p2p::{BusId, IpcHandleBytes, Peers, WORD_BYTES};
use disco_core::{Error, Result};

use super::stream::{Stream, call};
use super::table::IpcHandle;

/// `hipErrorPeerAccessAlreadyEnabled`
const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
/// `hipIpcMemLazyEnablePeerAccess`
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
/// `hipDeviceMallocFinegrained`
const FINE_GRAINED: c_uint = 1;
/// `hipMallocSignalMemory`
const SIGNAL_MEMORY: c_uint = 2;
/// `hipStreamWaitValueGte`
const WAIT_GEQ: c_uint = 0;

impl Peers for Stream {
    fn bus_id(&self) -> Result<BusId> {
        let text = disco_ccl::Driver::identity(self)?;
        text.parse()
            .map_err(|()| Error::invalid(format!("hipDeviceGetPCIBusId returned {text}, which is no PCI bus id")))
    }

    fn enable_access(&self, ordinal: i32) -> Result<()> {
        if ordinal == self.ordinal {
            return Ok(());
        }
        let mut can = 0;
        let own = self.ordinal;
        call!(self, "hipDeviceCanAccessPeer", optional device_can_access_peer(&mut can, own, ordinal))?;
        if can == 0 {
            return Err(Error::missing(format!("rocm:{own} can't access the memory of rocm:{ordinal}")));
        }
        match call!(self, "hipDeviceEnablePeerAccess", optional device_enable_peer_access(ordinal, 0)) {
            Err(Error::Library { code, .. }) if code == i64::from(PEER_ACCESS_ALREADY_ENABLED) => Ok(()),
            enabled => enabled,
        }
    }

    /// Allocates fine-grained memory. HIP implements a wait as a kernel, and only in fine-grained memory does a running
    /// kernel see the writes of peers; in other memory it sees writes from before its start. If a device has no
    /// fine-grained memory, the ranks' test of their shared memory finds out whether waits end.
    fn alloc_shared(&self, bytes: usize) -> Result<Option<*mut u8>> {
        let mut memory = ptr::null_mut();
        match call!(self, "hipExtMallocWithFlags", optional ext_malloc_with_flags(&mut memory, bytes, FINE_GRAINED)) {
            Ok(()) => Ok(Some(memory.cast())),
            Err(_) => disco_ccl::Driver::alloc(self, bytes),
        }
    }

    /// Allocates signal memory, the only memory for which HIP documents waits. The first versions of ROCm's
    /// `hip_stream_ops.cpp` refuse other memory; later versions refuse it only with `GPU_STREAMOPS_CP_WAIT=1`.
    fn alloc_word(&self) -> Result<Option<*mut u8>> {
        let mut memory = ptr::null_mut();
        let flags = SIGNAL_MEMORY;
        call!(self, "hipExtMallocWithFlags", optional ext_malloc_with_flags(&mut memory, WORD_BYTES, flags))?;
        Ok(Some(memory.cast()))
    }

    unsafe fn export(&self, memory: *mut u8) -> Result<IpcHandleBytes> {
        let mut handle = IpcHandle([0; 64]);
        call!(self, "hipIpcGetMemHandle", optional ipc_get_mem_handle(&mut handle, memory.cast())).map(|()| handle.0)
    }

    fn open(&self, export: &IpcHandleBytes) -> Result<*mut u8> {
        let (mut memory, handle) = (ptr::null_mut::<c_void>(), IpcHandle(*export));
        let flags = LAZY_ENABLE_PEER_ACCESS;
        call!(self, "hipIpcOpenMemHandle", optional ipc_open_mem_handle(&mut memory, handle, flags))?;
        Ok(memory.cast())
    }

    unsafe fn close(&self, memory: *mut u8) -> Result<()> {
        call!(self, "hipIpcCloseMemHandle", optional ipc_close_mem_handle(memory.cast()))
    }

    unsafe fn write_word(&self, word: *mut u32, value: u32) -> Result<()> {
        call!(self, "hipStreamWriteValue32", optional stream_write_value(self.stream, word.cast(), value, 0))
    }

    /// HIP compares unsigned values, so after 2³² signals of one slot, when the value wraps, a wait ends too early.
    unsafe fn wait_word(&self, word: *const u32, value: u32) -> Result<()> {
        let (word, all) = (word.cast_mut().cast(), u32::MAX);
        call!(self, "hipStreamWaitValue32", optional stream_wait_value(self.stream, word, value, WAIT_GEQ, all))
    }
}
