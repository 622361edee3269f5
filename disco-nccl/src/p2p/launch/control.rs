//! The control words of a rank's kernels.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use disco_ccl::{Pinned, Runtime};
use disco_core::Result;

/// Two words of pinned memory that the host and a rank's kernels share: the abort flag, which the host sets, and the
/// failure report, which the first failing kernel writes. Their host address is also their device address.
#[derive(Debug)]
pub(super) struct ControlWords {
    _pinned: Pinned,
    words: *mut AtomicU32,
}

// SAFETY: the words are atomic, and `_pinned` keeps them allocated.
unsafe impl Send for ControlWords {}
// SAFETY: the words are atomic, and `_pinned` keeps them allocated.
unsafe impl Sync for ControlWords {}

impl ControlWords {
    /// Allocates both words; they are 0.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn new(runtime: &Arc<Runtime>) -> Result<Self> {
        let pinned = Pinned::new(runtime, size_of::<[u32; 2]>())?;
        let words = pinned.data();
        // SAFETY: the allocation has room for two words, and no other reference to it exists yet.
        unsafe { words.cast::<[u32; 2]>().write([0; 2]) };
        Ok(Self { _pinned: pinned, words: words.cast() })
    }

    /// The abort flag: a value other than 0 ends the waits of kernels.
    pub(super) fn abort(&self) -> &AtomicU32 {
        // SAFETY: `_pinned` keeps the word allocated as long as `self`.
        unsafe { &*self.words }
    }

    /// The failure report of the kernels: see [`Failure::of`](crate::p2p::kernels::Failure::of).
    pub(super) fn failure_report(&self) -> &AtomicU32 {
        // SAFETY: the second word is in the same allocation, which `_pinned` keeps as long as `self`.
        unsafe { &*self.words.wrapping_add(1) }
    }

    /// The report of the first launch that failed; 0 if none has failed.
    pub(super) fn failure(&self) -> u32 {
        self.failure_report().load(Ordering::Acquire)
    }
}
