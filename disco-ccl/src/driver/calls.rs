//! The calls on one device with one stream.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::fmt::Debug;

use disco_core::{Device, Result};

use super::{GraphFunctions, Peers};
use crate::abi::Stream;
use crate::pool::PoolFunctions;

/// The calls of a vendor's device library, on one device with one stream on it, both of which stay as long as this does.
///
/// But for [`Driver::make_current`] and [`Driver::with_current`], they are made on a thread on which the device is current. None waits for the
/// stream, but those that free.
pub trait Driver: Any + Debug + Send + Sync {
    /// The device.
    fn device(&self) -> Device;

    /// What tells it from every other device, in any process: a UUID, as a rule.
    ///
    /// # Errors
    /// The library's own, as of all that follow.
    fn identity(&self) -> Result<String>;

    /// Whether reductions of 8-bit floats work on the device.
    fn reduces_f8(&self) -> bool;

    /// The stream.
    fn stream(&self) -> Stream;

    /// Makes the device current on the calling thread.
    ///
    /// # Errors
    /// The library's own.
    fn make_current(&self) -> Result<()>;

    /// Does something with the device current, and makes current again what was.
    fn with_current(&self, work: &mut dyn FnMut());

    /// The functions for [pools](PoolFunctions) of device memory, or why there are none.
    ///
    /// # Errors
    /// The function that the library lacks.
    fn pools(&self) -> Result<PoolFunctions, String>;

    /// The functions for [graphs](crate::Graph), or why there are none.
    ///
    /// # Errors
    /// The function that the library lacks.
    fn graphs(&self) -> Result<GraphFunctions, String>;

    /// Numbers of the other devices of this process that can have access to this one's memory.
    fn accessors(&self) -> Vec<i32>;

    /// Device memory of no pool, with anything in it; none where there is no room.
    ///
    /// # Errors
    /// The library's own.
    fn alloc(&self, bytes: usize) -> Result<Option<*mut u8>>;

    /// Gives it back. May wait for all that the device and its peers do.
    ///
    /// # Safety
    /// It came from there, and nobody uses it any more.
    ///
    /// # Errors
    /// The library's own.
    unsafe fn free(&self, memory: *mut u8) -> Result<()>;

    /// Host memory that copies touch when the stream gets there, with anything in it.
    ///
    /// # Errors
    /// The library's own.
    fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8>;

    /// As [`Driver::free`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// The library's own.
    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<()>;

    /// Zeros, on the stream.
    ///
    /// # Safety
    /// It is so many bytes of device memory, at least one, until the stream got there.
    ///
    /// # Errors
    /// The library's own.
    unsafe fn clear(&self, memory: *mut u8, bytes: usize) -> Result<()>;

    /// Copies, on the stream.
    ///
    /// # Safety
    /// Both are so many bytes, at least one, of device memory or pinned memory, as the way says, until the stream got there.
    ///
    /// # Errors
    /// The library's own.
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, kind: CopyKind) -> Result<()>;

    /// Whether all work on the stream is done.
    ///
    /// # Errors
    /// The library's own, of work that failed.
    fn is_idle(&self) -> Result<bool>;

    /// A new event for the stream.
    ///
    /// # Errors
    /// The library's own.
    fn create_event(&self) -> Result<EventHandle>;

    /// Sets a event here.
    ///
    /// # Safety
    /// It came from [`Driver::create_event`] and is not destroyed.
    ///
    /// # Errors
    /// The library's own.
    unsafe fn record_event(&self, event: EventHandle) -> Result<()>;

    /// Whether the stream has passed it.
    ///
    /// # Safety
    /// As [`Driver::record_event`].
    ///
    /// # Errors
    /// The library's own, of work that failed.
    unsafe fn is_event_complete(&self, event: EventHandle) -> Result<bool>;

    /// Destroys it.
    ///
    /// # Safety
    /// As [`Driver::record_event`], for the last time.
    unsafe fn destroy_event(&self, event: EventHandle);

    /// Lets the stream wait until another one has passed a event that was set there.
    ///
    /// # Safety
    /// As [`Driver::record_event`].
    ///
    /// # Errors
    /// The library's own.
    unsafe fn wait_event(&self, event: EventHandle) -> Result<()>;

    /// The same device with another stream.
    ///
    /// # Errors
    /// The library's own.
    fn new_stream(&self) -> Result<Box<dyn Driver>>;

    /// The same device with a new stream of the highest priority. Ordinary streams share hardware queues, in which a stream that waits
    /// holds up the others; a stream of a higher priority shares none with them.
    ///
    /// # Errors
    /// The library lacks a function for it; the library's own.
    fn new_priority_stream(&self) -> Result<Box<dyn Driver>>;

    /// Its calls for memory that several devices have, or why there are none.
    ///
    /// # Errors
    /// The library is too old, or the device can't.
    fn peers(&self) -> Result<&dyn Peers, String>;
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each driver names them all")]
pub enum CopyKind {
    /// From pinned memory.
    ToDevice,
    /// To pinned memory.
    ToHost,
    /// From device memory to device memory.
    OnDevice,
}

/// A vendor's event.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "each driver makes them")]
pub struct EventHandle(pub *mut c_void);

// SAFETY: it is a name, which the library takes on any thread.
unsafe impl Send for EventHandle {}
