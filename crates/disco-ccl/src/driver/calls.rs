//! The functions of one device with one stream.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt::Debug;

use disco_core::{Device, Result};

use super::{EventHandle, GraphFunctions, Peers, TimingFunctions};
use crate::abi::Stream;
use crate::pool::PoolFunctions;

/// The functions of a vendor's device library, for one device and one stream. Both stay valid as long as this value.
///
/// The device is current on the calling thread, except for [`Driver::make_current`] and [`Driver::with_current`]. No
/// function waits for the stream, except those that free memory.
pub trait Driver: Any + Debug + Send + Sync {
    /// The device.
    fn device(&self) -> Device;

    /// A text that identifies the device in all processes: usually a UUID.
    ///
    /// # Errors
    /// Errors of the library.
    fn identity(&self) -> Result<String>;

    /// Whether the library reduces 8-bit floats on this device.
    fn reduces_f8(&self) -> bool;

    /// The stream.
    fn stream(&self) -> Stream;

    /// Makes the device current on the calling thread.
    ///
    /// # Errors
    /// Errors of the library.
    fn make_current(&self) -> Result<()>;

    /// Runs `work` with the device current, and then restores the previous device.
    fn with_current(&self, work: &mut dyn FnMut());

    /// The functions for [pools](PoolFunctions) of device memory, or the reason why they are not available.
    ///
    /// # Errors
    /// The function that the library lacks.
    fn pools(&self) -> Result<PoolFunctions, String>;

    /// The functions for [graphs](crate::Graph), or the reason why they are not available.
    ///
    /// # Errors
    /// The function that the library lacks.
    fn graphs(&self) -> Result<GraphFunctions, String>;

    /// The functions for times of events, or the reason why they are not available.
    ///
    /// # Errors
    /// The function that the library lacks.
    fn timing(&self) -> Result<TimingFunctions, String>;

    /// Ordinals of the other devices of this process that can access this device's memory.
    fn accessors(&self) -> Vec<i32>;

    /// Allocates uninitialized device memory, outside of pools. None if the device has too little memory.
    ///
    /// # Errors
    /// Errors of the library.
    fn alloc(&self, bytes: usize) -> Result<Option<*mut u8>>;

    /// Frees memory of [`Driver::alloc`]. May wait for all work of the device and of its peers.
    ///
    /// # Safety
    /// `memory` came from [`Driver::alloc`] or [`Peers`] of this device, and nothing uses it any more.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn free(&self, memory: *mut u8) -> Result<()>;

    /// Allocates uninitialized pinned host memory. Copies of it run in stream order.
    ///
    /// # Errors
    /// Errors of the library.
    fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8>;

    /// Frees pinned memory. May wait for all work of the device and of its peers.
    ///
    /// # Safety
    /// `memory` came from [`Driver::alloc_pinned`], and nothing uses it any more.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<()>;

    /// Fills device memory with zeros, in stream order.
    ///
    /// # Safety
    /// `memory` is `bytes` bytes of device memory, at least one, and stays allocated until the stream has passed this
    /// call.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn clear(&self, memory: *mut u8, bytes: usize) -> Result<()>;

    /// Copies memory, in stream order.
    ///
    /// # Safety
    /// `to` and `from` are `bytes` bytes, at least one, of device memory or pinned memory, as `kind` says. Both stay
    /// allocated until the stream has passed this call.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, kind: CopyKind) -> Result<()>;

    /// Whether all work on the stream is done.
    ///
    /// # Errors
    /// Errors of the library, also of work that has failed.
    fn is_idle(&self) -> Result<bool>;

    /// Creates an event.
    ///
    /// # Errors
    /// Errors of the library.
    fn create_event(&self) -> Result<EventHandle>;

    /// Records an event on the stream, behind all earlier work.
    ///
    /// # Safety
    /// `event` came from [`Driver::create_event`] of this device, and is not destroyed.
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn record_event(&self, event: EventHandle) -> Result<()>;

    /// Whether the stream has passed an event.
    ///
    /// # Safety
    /// As for [`Driver::record_event`].
    ///
    /// # Errors
    /// Errors of the library, also of work that has failed.
    unsafe fn is_event_complete(&self, event: EventHandle) -> Result<bool>;

    /// Destroys an event.
    ///
    /// # Safety
    /// As for [`Driver::record_event`], and nothing uses the event afterwards.
    unsafe fn destroy_event(&self, event: EventHandle);

    /// Makes later work of the stream wait until another stream has passed an event that was recorded there.
    ///
    /// # Safety
    /// As for [`Driver::record_event`].
    ///
    /// # Errors
    /// Errors of the library.
    unsafe fn wait_event(&self, event: EventHandle) -> Result<()>;

    /// A driver of the same device with a new stream.
    ///
    /// # Errors
    /// Errors of the library.
    fn new_stream(&self) -> Result<Box<dyn Driver>>;

    /// A driver of the same device with a new stream of the highest priority. Ordinary streams share hardware queues,
    /// and a stream that waits blocks the other streams of its queue. A stream of a higher priority shares no queue
    /// with ordinary streams.
    ///
    /// # Errors
    /// The library lacks a function for it; errors of the library.
    fn new_priority_stream(&self) -> Result<Box<dyn Driver>>;

    /// The functions for memory that several devices share, or the reason why they are not available.
    ///
    /// # Errors
    /// The library is too old, or the device lacks the feature.
    fn peers(&self) -> Result<&dyn Peers, String>;
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each driver names them all")]
pub enum CopyKind {
    /// From pinned memory to device memory.
    ToDevice,
    /// From device memory to pinned memory.
    ToHost,
    /// From device memory to device memory.
    OnDevice,
}
