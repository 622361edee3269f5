//! Memory that is registered with a communicator.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use disco_core::tensor::Storage;

use crate::library::Library;
use crate::owned::OwnedComm;

/// Registered memory, which is kept until its communicator ends.
pub(crate) struct Registration {
    storage: Arc<Storage>,
    token: *mut c_void,
}

// SAFETY: the token is only passed back to the library, by the thread that owns its communicator.
unsafe impl Send for Registration {}

impl Registration {
    /// A registration of a storage, with the library's token.
    pub(crate) fn new(storage: Arc<Storage>, token: *mut c_void) -> Self {
        Self { storage, token }
    }

    pub(crate) fn is_of(&self, storage: &Arc<Storage>) -> bool {
        Arc::ptr_eq(&self.storage, storage)
    }

    /// Deregisters the memory, before its communicator is destroyed.
    pub(crate) fn deregister(&self, library: &Library, comm: &OwnedComm) {
        let Some(comm_deregister) = library.table.comm_deregister else { return };
        // SAFETY: this is the only owner of the communicator, which made this registration.
        let code = unsafe { comm_deregister(comm.0, self.token) };
        library.report("ncclCommDeregister", code);
    }
}

disco_core::format_as!(Debug for Registration, |it| "<{:?}, registered>", it.storage);
