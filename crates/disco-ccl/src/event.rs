//! Events by which the host sees how far a stream is.

#![allow(unsafe_code)]

use std::sync::Arc;

use disco_core::Result;

use crate::driver::EventHandle;
use crate::runtime::Runtime;

/// An event of the driver on a runtime's stream. Drop destroys it.
pub(crate) struct OwnedEvent {
    runtime: Arc<Runtime>,
    handle: EventHandle,
    is_recorded: bool,
}

impl OwnedEvent {
    /// Creates an event that is not recorded. The device is current.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn new(runtime: &Arc<Runtime>) -> Result<Self> {
        let handle = runtime.driver().create_event()?;
        Ok(Self { runtime: runtime.clone(), handle, is_recorded: false })
    }

    /// Records the event behind all work of the stream so far.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn record(&mut self) -> Result<()> {
        // SAFETY: the event lives as long as this value.
        unsafe { self.runtime.driver().record_event(self.handle) }?;
        self.is_recorded = true;
        Ok(())
    }

    /// Makes the event count as not recorded, because the stream gets more work that it is to be behind.
    pub(crate) fn reset(&mut self) {
        self.is_recorded = false;
    }

    /// Whether the event is recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Whether the stream has passed the event; false if it is not recorded.
    ///
    /// # Errors
    /// Errors of the driver, also of work that has failed.
    pub(crate) fn is_passed(&self) -> Result<bool> {
        // SAFETY: the event lives as long as this value.
        Ok(self.is_recorded && unsafe { self.runtime.driver().is_event_complete(self.handle) }?)
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        // SAFETY: this driver created the event, and it is destroyed once.
        unsafe { self.runtime.driver().destroy_event(self.handle) };
    }
}
