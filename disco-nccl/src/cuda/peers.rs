//! The driver's calls for memory that several devices have.

#![allow(unsafe_code)]

use std::ffi::c_char;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult, CUstreamWaitValue_flags, CUstreamWriteValue_flags};
use disco_ccl::p2p::{BusId, Export, Peers};
use disco_core::{Error, Result};

use super::error::check;
use super::stream::Stream;
use super::{device, driver};

/// The one flag of `cuIpcOpenMemHandle`: `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// That nothing is reordered with the write, and that the value is to be as high.
const WRITE_DEFAULT: u32 = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
const WAIT_GREATER_OR_EQUAL: u32 = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;

impl Peers for Stream {
    fn bus_id(&self) -> Result<BusId> {
        device::bus_id(self.ordinal())
    }

    fn reach(&self, ordinal: i32) -> Result<()> {
        if ordinal == self.ordinal() as i32 {
            return Ok(());
        }
        let (own, peer) = (device_of(self.ordinal() as i32)?, device_of(ordinal)?);
        let mut can = 0;
        // SAFETY: the driver has just given both, and the place is there.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, peer) };
        check("cuDeviceCanAccessPeer", asked.result())?;
        if can == 0 {
            return Err(Error::missing(format!("cuda:{} can't access the memory of cuda:{ordinal}", self.ordinal())));
        }
        // SAFETY: the driver has just given it.
        let context = check("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(peer) })?;
        // SAFETY: the context is there; 0 is the one flag.
        let enabled = match unsafe { sys::cuCtxEnablePeerAccess(context, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            enabled => check("cuCtxEnablePeerAccess", enabled.result()),
        };
        // The peer's rank has it, too.
        // SAFETY: it was retained above.
        let released = check("cuDevicePrimaryCtxRelease", unsafe { result::primary_ctx::release(peer) });
        enabled.and(released)
    }

    fn alloc_shared(&self, bytes: usize) -> Result<Option<*mut u8>> {
        disco_ccl::Driver::alloc(self, bytes)
    }

    /// CUDA's streams wait in any memory.
    fn alloc_word(&self) -> Result<Option<*mut u8>> {
        Ok(None)
    }

    unsafe fn export(&self, memory: *mut u8) -> Result<Export> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: as the caller promises, and the place is there.
        let exported = unsafe { sys::cuIpcGetMemHandle(&mut handle, memory as sys::CUdeviceptr) };
        check("cuIpcGetMemHandle", exported.result())?;
        Ok(handle.reserved.map(c_char::cast_unsigned))
    }

    fn open(&self, export: &Export) -> Result<*mut u8> {
        let handle = sys::CUipcMemHandle { reserved: export.map(u8::cast_signed) };
        let mut address = 0;
        // SAFETY: the driver refuses what is no handle, and the place is there.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, LAZY_ENABLE_PEER_ACCESS) };
        check("cuIpcOpenMemHandle", opened.result())?;
        Ok(address as *mut u8)
    }

    unsafe fn close(&self, memory: *mut u8) -> Result<()> {
        // SAFETY: as the caller promises.
        check("cuIpcCloseMemHandle", unsafe { sys::cuIpcCloseMemHandle(memory as sys::CUdeviceptr).result() })
    }

    unsafe fn write_word(&self, word: *mut u32, value: u32) -> Result<()> {
        let (stream, address) = (self.cu_stream(), word as sys::CUdeviceptr);
        // SAFETY: as the caller promises.
        let enqueued = unsafe { sys::cuStreamWriteValue32_v2(stream, address, value, WRITE_DEFAULT) };
        check("cuStreamWriteValue32", enqueued.result())
    }

    unsafe fn wait_word(&self, word: *const u32, value: u32) -> Result<()> {
        let (stream, address) = (self.cu_stream(), word as sys::CUdeviceptr);
        let flush =
            if self.flushes_remote_writes { CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_FLUSH as u32 } else { 0 };
        // SAFETY: as the caller promises.
        let enqueued = unsafe { sys::cuStreamWaitValue32_v2(stream, address, value, WAIT_GREATER_OR_EQUAL | flush) };
        check("cuStreamWaitValue32", enqueued.result())
    }
}

/// Numbers of the other devices that can have access to a device's memory.
pub(super) fn accessors(ordinal: i32) -> Vec<i32> {
    let can_access = |peer: &i32| {
        let (Ok(own), Ok(peer)) = (device_of(ordinal), device_of(*peer)) else { return false };
        let mut can = 0;
        // SAFETY: the driver has just given both, and the place is there.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can, peer, own) };
        asked == CUresult::CUDA_SUCCESS && can != 0
    };
    let count = result::device::get_count().unwrap_or(0);
    match driver::require(&[c"cuDeviceCanAccessPeer"]) {
        Ok(()) => (0..count).filter(|peer| *peer != ordinal).filter(can_access).collect(),
        Err(_) => Vec::new(),
    }
}

fn device_of(ordinal: i32) -> Result<sys::CUdevice> {
    check("cuDeviceGet", result::device::get(ordinal))
}
