//! Words of the host's that kernels see.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use disco_ccl::{Pinned, Runtime};
use disco_core::Result;

/// A word that tells kernels to give up, and one that says why the first that failed did. Pinned: the host's address is the device's.
#[derive(Debug)]
pub(super) struct Words {
    _pinned: Pinned,
    place: *mut AtomicU32,
}

// SAFETY: they are atomic, and there for as long as this is.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Zeros.
    ///
    /// # Errors
    /// The driver's own.
    pub(super) fn new(runtime: &Arc<Runtime>) -> Result<Self> {
        let pinned = Pinned::new(runtime, size_of::<[u32; 2]>())?;
        let place = pinned.data();
        // SAFETY: there is room for two, and nobody has it yet.
        unsafe { place.cast::<[u32; 2]>().write([0; 2]) };
        Ok(Self { _pinned: pinned, place: place.cast() })
    }

    pub(super) fn abort(&self) -> &AtomicU32 {
        // SAFETY: it is there for as long as this is.
        unsafe { &*self.place }
    }

    pub(super) fn report(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.place.wrapping_add(1) }
    }

    /// What the first launch that failed has said; 0 while none has.
    pub(super) fn said(&self) -> u32 {
        self.report().load(Ordering::Acquire)
    }
}
