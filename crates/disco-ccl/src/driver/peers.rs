//! The functions of a vendor's device library for memory that devices share.

#![allow(unsafe_code)]

use std::fmt::Debug;

use disco_core::Result;

use super::BusId;

/// The handle by which other processes of this machine open an allocation: `CUipcMemHandle`, `hipIpcMemHandle_t`.
pub type IpcHandleBytes = [u8; 64];

/// Bytes of an allocation for one signal word, as `hipMallocSignalMemory` requires.
pub const WORD_BYTES: usize = 8;

/// The functions of a vendor's device library for memory that several devices share, and for signal words: 32-bit
/// integers that streams write and wait for. The device is current on the calling thread.
pub trait Peers: Debug + Send + Sync {
    /// The address of the device on the PCI bus.
    ///
    /// # Errors
    /// Errors of the library.
    fn bus_id(&self) -> Result<BusId>;

    /// Gives this device access to all memory of another device of this process.
    ///
    /// # Errors
    /// The devices have no peer access.
    fn enable_access(&self, ordinal: i32) -> Result<()>;

    /// Allocates uninitialized device memory that peers can open. None if the device has too little memory. Where the
    /// device has fine-grained memory, running work sees the writes of peers. [`Driver::free`](crate::Driver::free)
    /// frees the memory.
    ///
    /// # Errors
    /// Errors of the library.
    fn alloc_shared(&self, bytes: usize) -> Result<Option<*mut u8>>;

    /// Allocates [`WORD_BYTES`] uninitialized bytes for one signal word, which all devices of this process can write.
    /// None: the library has no separate memory for signal words. [`Driver::free`](crate::Driver::free) frees the
    /// memory.
    ///
    /// # Errors
    /// Errors of the library.
    fn alloc_word(&self) -> Result<Option<*mut u8>>;

    /// The handle by which other processes open the memory. It is valid until the memory is freed.
    ///
    /// # Safety
    /// `memory` came from [`Peers::alloc_shared`].
    ///
    /// # Errors
    /// The memory can't be shared.
    unsafe fn export(&self, memory: *mut u8) -> Result<IpcHandleBytes>;

    /// Opens memory of another process for this device.
    ///
    /// # Errors
    /// The memory does not exist, or the device can't access it.
    fn open(&self, export: &IpcHandleBytes) -> Result<*mut u8>;

    /// Closes memory of another process. May wait for all work of the device.
    ///
    /// # Safety
    /// `memory` came from [`Peers::open`], and nothing uses it any more.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn close(&self, memory: *mut u8) -> Result<()>;

    /// Writes a signal word, in stream order. An observer of the value also sees all earlier writes of the stream.
    ///
    /// # Safety
    /// `word` stays allocated until the stream has passed this call.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn write_word(&self, word: *mut u32, value: u32) -> Result<()>;

    /// Makes later work of the stream wait until `*word` has reached `value`: `*word - value`, as a signed 32-bit
    /// integer, is 0 or more.
    ///
    /// # Safety
    /// As for [`Peers::write_word`].
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn wait_word(&self, word: *const u32, value: u32) -> Result<()>;
}
