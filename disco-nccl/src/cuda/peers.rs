//! The driver's functions for memory that several devices access.

#![allow(unsafe_code)]

use std::ffi::c_char;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult, CUstreamWaitValue_flags, CUstreamWriteValue_flags};
use disco_ccl::p2p::{BusId, IpcHandleBytes, Peers};
use disco_core::{Error, Result};

use super::attributes::{self, device_of};
use super::error::check;
use super::stream::Stream;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag of `cuIpcOpenMemHandle`.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// Earlier work of the stream is visible to peers before the written value is.
const WRITE_ORDERED: u32 = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
/// The wait ends once the word's value is at least the expected one, by a comparison that may wrap.
const WAIT_GEQ: u32 = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;

impl Peers for Stream {
    fn bus_id(&self) -> Result<BusId> {
        attributes::bus_id(self.ordinal())
    }

    fn enable_access(&self, ordinal: i32) -> Result<()> {
        if ordinal == self.ordinal() as i32 {
            return Ok(());
        }
        let (own, peer) = (device_of(self.ordinal() as i32)?, device_of(ordinal)?);
        let mut can = 0;
        // SAFETY: the driver has just returned both devices, and `can` is writable.
        let queried = unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, peer) };
        check("cuDeviceCanAccessPeer", queried.result())?;
        if can == 0 {
            return Err(Error::missing(format!("cuda:{} can't access the memory of cuda:{ordinal}", self.ordinal())));
        }
        // SAFETY: the driver has just returned the device.
        let context = check("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(peer) })?;
        // SAFETY: the context is retained until the release below; the function requires flags of 0.
        let enabled = match unsafe { sys::cuCtxEnablePeerAccess(context, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            enabled => check("cuCtxEnablePeerAccess", enabled.result()),
        };
        // Peer access stays enabled after this release, because the peer's rank retains the same context.
        // SAFETY: the context was retained above, and this is the only release of that reference.
        let released = check("cuDevicePrimaryCtxRelease", unsafe { result::primary_ctx::release(peer) });
        enabled.and(released)
    }

    fn alloc_shared(&self, bytes: usize) -> Result<Option<*mut u8>> {
        disco_ccl::Driver::alloc(self, bytes)
    }

    /// None: streams of CUDA can wait for words in any device memory.
    fn alloc_word(&self) -> Result<Option<*mut u8>> {
        Ok(None)
    }

    unsafe fn export(&self, memory: *mut u8) -> Result<IpcHandleBytes> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the caller promises that `memory` starts an allocation of `alloc_shared`; `handle` is writable.
        let exported = unsafe { sys::cuIpcGetMemHandle(&mut handle, memory as sys::CUdeviceptr) };
        check("cuIpcGetMemHandle", exported.result())?;
        Ok(handle.reserved.map(c_char::cast_unsigned))
    }

    fn open(&self, export: &IpcHandleBytes) -> Result<*mut u8> {
        let handle = sys::CUipcMemHandle { reserved: export.map(u8::cast_signed) };
        let mut address = 0;
        // SAFETY: the driver refuses bytes that are no handle, and `address` is writable.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, LAZY_ENABLE_PEER_ACCESS) };
        check("cuIpcOpenMemHandle", opened.result())?;
        Ok(address as *mut u8)
    }

    unsafe fn close(&self, memory: *mut u8) -> Result<()> {
        // SAFETY: the caller promises that `open` returned `memory` and that no work uses it any more.
        check("cuIpcCloseMemHandle", unsafe { sys::cuIpcCloseMemHandle(memory as sys::CUdeviceptr).result() })
    }

    unsafe fn write_word(&self, word: *mut u32, value: u32) -> Result<()> {
        let (stream, address) = (self.cu_stream(), word as sys::CUdeviceptr);
        // SAFETY: the caller promises that the word is mapped until the stream has executed the write.
        let enqueued = unsafe { sys::cuStreamWriteValue32_v2(stream, address, value, WRITE_ORDERED) };
        check("cuStreamWriteValue32", enqueued.result())
    }

    unsafe fn wait_word(&self, word: *const u32, value: u32) -> Result<()> {
        let (stream, address) = (self.cu_stream(), word as sys::CUdeviceptr);
        let flush =
            if self.flushes_remote_writes { CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_FLUSH as u32 } else { 0 };
        // SAFETY: the caller promises that the word is mapped until the stream has passed the wait.
        let enqueued = unsafe { sys::cuStreamWaitValue32_v2(stream, address, value, WAIT_GEQ | flush) };
        check("cuStreamWaitValue32", enqueued.result())
    }
}
