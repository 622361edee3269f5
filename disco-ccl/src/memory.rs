//! Memory that the library knows: its own, and what is registered with a communicator.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use disco_core::tensor::Storage;
use disco_core::{DType, DeviceKind, Result, Shape, Tensor};

use crate::ending;
use crate::handle::{Handle, Owned};
use crate::library::Library;
use crate::queue::Queue;
use crate::runtime::Runtime;

/// Memory that was registered, which stays until its communicator ends.
pub(crate) struct Registration {
    storage: Arc<Storage>,
    token: *mut c_void,
}

// SAFETY: the token is passed back to the library only, from whatever thread has its communicator.
unsafe impl Send for Registration {}

/// What keeps memory of the library's.
struct Block {
    library: &'static Library,
    runtime: Arc<Runtime>,
    pointer: Pointer,
}

/// Its address.
#[derive(Clone, Copy)]
struct Pointer(*mut c_void);

// SAFETY: it is an address, which the library takes back from any thread.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl Library {
    /// Device memory that the library has allocated as its fastest ways want it, with anything in it; of the device's ordinary
    /// memory where it has none of its own (before 2.19). Its tensors are for work on the stream of `runtime`.
    ///
    /// # Errors
    /// No room.
    pub fn alloc(&'static self, runtime: &Arc<Runtime>, bytes: usize) -> Result<Arc<Storage>> {
        let (Some(mem_alloc), Some(_)) = (self.table.mem_alloc, self.table.mem_free) else {
            return runtime.alloc(bytes);
        };
        runtime.enter()?;
        runtime.refuse_in_capture("allocation", "allocate tensors before the capture")?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the place is there.
        self.check("ncclMemAlloc", unsafe { mem_alloc(&mut pointer, bytes.max(1)) })?;
        let owner = Box::new(Block { library: self, runtime: runtime.clone(), pointer: Pointer(pointer) });
        // SAFETY: it is so many bytes of this device's memory, until the block is dropped; any bytes are elements.
        Ok(unsafe { Storage::from_raw(pointer.cast(), bytes, runtime.device(), owner) })
    }

    /// A zeroed tensor in [memory of the library's](Library::alloc).
    pub(crate) fn empty(
        &'static self,
        queue: &mut (dyn disco_core::Queue + 'static),
        kind: DeviceKind,
        dtype: DType,
        shape: Shape,
    ) -> Result<Tensor> {
        let runtime = Queue::of(queue, kind)?.runtime();
        Tensor::in_new_storage(dtype, shape, |bytes| {
            let storage = self.alloc(runtime, bytes)?;
            runtime.clear(&storage).map(|()| storage)
        })
    }
}

impl Registration {
    /// Registers all of a storage. None where the library has no use for it.
    ///
    /// # Errors
    /// [`Error::Aborted`](disco_core::Error::Aborted), the library's.
    pub(crate) fn new(library: &Library, handle: &Handle, storage: &Arc<Storage>) -> Result<Option<Self>> {
        let Some(register) = library.table.comm_register else { return Ok(None) };
        let (mut token, bytes) = (ptr::null_mut(), storage.byte_len());
        // SAFETY: the communicator is there, and so are the bytes and the place.
        let code = handle.call(|_, comm| unsafe { register(comm, storage.pointer().cast(), bytes, &mut token) })?;
        library.check("ncclCommRegister", code)?;
        Ok(Some(Self { storage: storage.clone(), token }))
    }

    pub(crate) fn is_of(&self, storage: &Arc<Storage>) -> bool {
        Arc::ptr_eq(&self.storage, storage)
    }

    /// Takes it back, before its communicator is destroyed.
    pub(crate) fn end(&self, library: &Library, comm: &Owned) {
        let Some(deregister) = library.table.comm_deregister else { return };
        // SAFETY: nobody else has the communicator, which gave this out.
        let code = unsafe { deregister(comm.0, self.token) };
        ending::report(library, "ncclCommDeregister", code);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let (library, runtime, pointer) = (self.library, self.runtime.clone(), self.pointer);
        // As the driver's, the library's free may wait for what the device does.
        ending::when_idle(&runtime, "ncclMemFree", move || {
            let pointer = pointer;
            let Some(mem_free) = library.table.mem_free else { return };
            // SAFETY: it came from there, nobody has it any more, and it is freed once.
            let code = unsafe { mem_free(pointer.0) };
            ending::report(library, "ncclMemFree", code);
        });
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{:?}, registered>", self.storage)
    }
}
