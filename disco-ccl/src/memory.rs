//! Device memory of the library's own.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use disco_core::tensor::Storage;
use disco_core::{DType, DeviceKind, Result, Shape, Tensor};

use crate::library::Library;
use crate::queue::Queue;
use crate::runtime::{self, Runtime};

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
        runtime.make_current()?;
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

impl Drop for Block {
    fn drop(&mut self) {
        let (library, runtime, pointer) = (self.library, self.runtime.clone(), self.pointer);
        // As the driver's, the library's free may wait for what the device does.
        runtime::when_idle(&runtime, "ncclMemFree", move || {
            let pointer = pointer;
            let Some(mem_free) = library.table.mem_free else { return };
            // SAFETY: it came from there, nobody has it any more, and it is freed once.
            let code = unsafe { mem_free(pointer.0) };
            library.report("ncclMemFree", code);
        });
    }
}
