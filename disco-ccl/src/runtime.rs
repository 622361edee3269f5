//! What communicators need of a vendor's device layer.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use disco_core::tensor::Storage;
use disco_core::{Device, Result};

use crate::abi::Stream;

/// One device with one stream on it, which stays as long as this does.
///
/// But for [`Runtime::enter`], it is called on a thread on which the device is current.
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// The device.
    fn device(&self) -> Device;

    /// What tells it from every other device, in any process: a UUID, as a rule.
    ///
    /// # Errors
    /// The driver's own.
    fn identity(&self) -> Result<String>;

    /// Whether the library's reductions of 8-bit floats work on the device.
    fn reduces_f8(&self) -> bool;

    /// Makes the device current on the calling thread.
    ///
    /// # Errors
    /// The driver's own.
    fn enter(&self) -> Result<()>;

    /// The vendor's handle of the stream.
    fn stream(&self) -> Stream;

    /// Device memory, with anything in it. After its drop it stays, or is used again in the order of the stream alone, until the
    /// stream has got there; dropping it does not wait for that. So does all memory of tensors on the device.
    ///
    /// # Errors
    /// No room.
    fn alloc(&self, bytes: usize) -> Result<Arc<Storage>>;

    /// Copies on the device, in the order of the stream.
    ///
    /// # Safety
    /// Both are so many bytes of the device's memory, and stay until the stream has got there.
    ///
    /// # Errors
    /// The driver's own.
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()>;

    /// Whether all work on the stream is done.
    ///
    /// # Errors
    /// The driver's own, of work that failed.
    fn is_idle(&self) -> Result<bool>;
}
