//! Device memory that the library allocates (`ncclMemAlloc`).

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use disco_core::tensor::Storage;
use disco_core::{DType, DeviceKind, Result, Shape, Tensor};

use crate::library::Library;
use crate::queue::Queue;
use crate::runtime::{self, Runtime};

/// The owner of one allocation.
struct Block {
    library: &'static Library,
    runtime: Arc<Runtime>,
    pointer: Pointer,
}

/// The address of an allocation.
#[derive(Clone, Copy)]
struct Pointer(*mut c_void);

// SAFETY: `ncclMemFree` accepts the address on any thread.
unsafe impl Send for Pointer {}
// SAFETY: a shared address is only copied.
unsafe impl Sync for Pointer {}

impl Library {
    /// Allocates uninitialized device memory by `ncclMemAlloc`, as the library's fastest transports require; ordinary
    /// device memory before NCCL 2.19. Only the stream of `runtime` may use the memory.
    ///
    /// # Errors
    /// No memory; the stream is being captured; errors of the library.
    pub fn alloc(&'static self, runtime: &Arc<Runtime>, bytes: usize) -> Result<Arc<Storage>> {
        let (Some(mem_alloc), Some(_)) = (self.table.mem_alloc, self.table.mem_free) else {
            return runtime.alloc(bytes);
        };
        runtime.make_current()?;
        runtime.refuse_in_capture("allocation", "allocate tensors before the capture")?;
        let mut pointer = ptr::null_mut();
        // SAFETY: `pointer` is a valid output.
        self.check("ncclMemAlloc", unsafe { mem_alloc(&mut pointer, bytes.max(1)) })?;
        let owner = Box::new(Block { library: self, runtime: runtime.clone(), pointer: Pointer(pointer) });
        // SAFETY: the allocation has `bytes` bytes on this device and lives until `owner` is dropped. Every bit pattern
        // is a valid element.
        Ok(unsafe { Storage::from_raw(pointer.cast(), bytes, runtime.device(), owner) })
    }

    /// Makes a zeroed tensor in [memory of the library](Library::alloc).
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
        // Like the driver's free, `ncclMemFree` may wait for the device.
        runtime::when_idle(&runtime, "ncclMemFree", move || {
            let pointer = pointer;
            let Some(mem_free) = library.table.mem_free else { return };
            // SAFETY: `ncclMemAlloc` allocated the memory, its storage was dropped, the device is idle, and this is the
            // only free.
            let code = unsafe { mem_free(pointer.0) };
            library.report("ncclMemFree", code);
        });
    }
}
