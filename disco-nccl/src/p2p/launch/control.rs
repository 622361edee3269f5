//! Words of the host's that kernels see.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use disco_ccl::{Pinned, Runtime};
use disco_core::Result;

/// A word that tells kernels to give up, and one that says why the first that failed did. Pinned: the host's address is
/// the device's.
#[derive(Debug)]
pub(super) struct ControlWords {
    _pinned: Pinned,
    words: *mut AtomicU32,
}

// SAFETY: they are atomic, and there for as long as this is.
unsafe impl Send for ControlWords {}
// SAFETY: as above.
unsafe impl Sync for ControlWords {}

impl ControlWords {
    /// Zeros.
    ///
    /// # Errors
    /// The driver's own.
    pub(super) fn new(runtime: &Arc<Runtime>) -> Result<Self> {
        let pinned = Pinned::new(runtime, size_of::<[u32; 2]>())?;
        let words = pinned.data();
        // SAFETY: there is room for two, and nobody has it yet.
        unsafe { words.cast::<[u32; 2]>().write([0; 2]) };
        Ok(Self { _pinned: pinned, words: words.cast() })
    }

    pub(super) fn abort(&self) -> &AtomicU32 {
        // SAFETY: it is there for as long as this is.
        unsafe { &*self.words }
    }

    pub(super) fn failure_report(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.words.wrapping_add(1) }
    }

    /// What the first launch that failed has said; 0 while none has.
    pub(super) fn failure(&self) -> u32 {
        self.failure_report().load(Ordering::Acquire)
    }
}
