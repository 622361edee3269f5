//! The functions of a vendor's device library with which devices share memory.

#![allow(unsafe_code)]

use std::fmt::Debug;

use disco_core::Result;

use super::BusId;

/// The name of an allocation for other processes of this machine: `CUipcMemHandle`, `hipIpcMemHandle_t`.
pub type IpcHandleBytes = [u8; 64];

/// Bytes of memory for one word: what `hipMallocSignalMemory` has.
pub const WORD_BYTES: usize = 8;

/// The calls of a vendor's device library for memory that several devices have, and for words in it that streams write and wait
/// for. Made on a thread on which the device is current.
pub trait Peers: Debug + Send + Sync {
    /// Where the device is.
    ///
    /// # Errors
    /// The library's own, as of all that follow.
    fn bus_id(&self) -> Result<BusId>;

    /// Lets the device touch what another one of this process has, from now on.
    ///
    /// # Errors
    /// They can't.
    fn enable_access(&self, ordinal: i32) -> Result<()>;

    /// Device memory for all that the device shares, with anything in it; none where there is no room. What peers write is seen by work
    /// that runs on the device at the time, if the device has such memory. [`Driver::free`](crate::Driver::free) frees it.
    ///
    /// # Errors
    /// The library's own.
    fn alloc_shared(&self, bytes: usize) -> Result<Option<*mut u8>>;

    /// Memory of [`WORD_BYTES`] for one word, in which streams can wait and which all devices of this process reach,
    /// with anything in it. None: the library has no memory for words alone. [`Driver::free`](crate::Driver::free) frees it.
    ///
    /// # Errors
    /// The library's own.
    fn alloc_word(&self) -> Result<Option<*mut u8>>;

    /// What other processes open the memory by, for as long as it is not freed.
    ///
    /// # Safety
    /// It came from [`Peers::alloc_shared`].
    ///
    /// # Errors
    /// The memory can't be shared.
    unsafe fn export(&self, memory: *mut u8) -> Result<IpcHandleBytes>;

    /// Memory of another process, for this device to touch.
    ///
    /// # Errors
    /// There is no such memory, or the device can't reach it.
    fn open(&self, export: &IpcHandleBytes) -> Result<*mut u8>;

    /// Ends that. May wait for all that the device does.
    ///
    /// # Safety
    /// It came from [`Peers::open`], and nobody uses it any more.
    ///
    /// # Errors
    /// The library's own.
    unsafe fn close(&self, memory: *mut u8) -> Result<()>;

    /// Writes a word when the stream gets there: who sees it sees all that the stream wrote before.
    ///
    /// # Safety
    /// The word is there until then.
    ///
    /// # Errors
    /// The library's own.
    unsafe fn write_word(&self, word: *mut u32, value: u32) -> Result<()>;

    /// Lets the stream wait until the word is at least as high: `word - value`, as a signed number, is not below 0.
    ///
    /// # Safety
    /// As [`Peers::write_word`].
    ///
    /// # Errors
    /// The library's own.
    unsafe fn wait_word(&self, word: *const u32, value: u32) -> Result<()>;
}
