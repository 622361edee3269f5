//! Open libraries of a process.

#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use libloading::os::unix;

use crate::foreign::Keep;
use crate::value::Any;

/// A library that is open in this process. Clones share it, also between worker threads. It is closed when the last
/// clone, the last of its functions and the last of its objects is dropped.
#[derive(Clone)]
pub struct SharedLibrary(pub(crate) Arc<OpenLibrary>);

/// The parts of an open library, in the order of their drops.
pub(crate) struct OpenLibrary {
    /// The module of libtvm_ffi. libtvm_ffi stores one per library in the library itself, so threads share it.
    pub(crate) module: Option<Any>,
    pub(crate) library: unix::Library,
    /// The memory of a library that was sent. While it is open, no other file has its path.
    pub(crate) sent: Option<OwnedFd>,
    /// The name for errors.
    pub(crate) name: String,
}

// SAFETY: the counts of the module are atomic, and libtvm_ffi permits calls of a module on any thread.
unsafe impl Send for OpenLibrary {}
// SAFETY: as above; the loader's functions are thread-safe.
unsafe impl Sync for OpenLibrary {}

impl SharedLibrary {
    /// The name of the file.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The module of libtvm_ffi; none if the library is used without it.
    pub fn module(&self) -> Option<&Any> {
        self.0.module.as_ref()
    }

    pub(crate) fn keep(&self) -> Keep {
        Some(self.0.clone())
    }

    /// The address of a symbol.
    pub(crate) fn address(&self, symbol: &str) -> Option<*mut c_void> {
        address(&self.0.library, symbol)
    }
}

/// The address of a symbol in a library or in the libraries that it needs.
pub(crate) fn address(library: &unix::Library, symbol: &str) -> Option<*mut c_void> {
    let symbol = CString::new(symbol).ok()?;
    // SAFETY: the address is not used here.
    let found = unsafe { library.get::<*mut c_void>(symbol.to_bytes_with_nul()) };
    found.ok().map(unix::Symbol::as_raw_ptr).filter(|address| !address.is_null())
}

impl fmt::Debug for SharedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<library {}>", self.0.name)
    }
}
