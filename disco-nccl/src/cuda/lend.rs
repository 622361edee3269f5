//! Device memory of the program, lent to a tensor for one operation.

#![allow(unsafe_code)]

use std::mem;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, DeviceRepr};
use disco_ccl::Runtime;
use disco_core::tensor::Storage;
use disco_core::{Element, Error, Result, Tensor, sync};

use super::WorkerStream;
use super::error::check;

impl WorkerStream {
    /// Runs `work` with a tensor of the elements of `slice`, in the same memory. `work` enqueues operations on the
    /// tensor.
    ///
    /// The operations run after all earlier work of `stream`, and later work of `stream` runs after the operations: `lend`
    /// includes both [fences](WorkerStream::fence_from). `stream` is the stream on which the program uses the slice. A
    /// per-thread default stream is that of the calling thread. cudarc, too, records that the worker's stream writes the
    /// slice. `lend` does not block unless it fails.
    ///
    /// Memory of cudarc may be in the device's pool, which is closed to other devices at first. The first call gives all
    /// devices access that can have it, because NCCL lets the ranks of one process access each other's buffers.
    ///
    /// In a [capture](WorkerStream::capture), the operations become part of the graph, which uses the memory at each launch:
    /// the program keeps the slice as long as the graph, unless the graph has allocated it.
    ///
    /// The program has the slice again when `lend` returns, also after an error, but then its elements are unspecified.
    /// After an error, `lend` waits up to 10 s until this rank and the other ranks of the process no longer access the
    /// memory. If they still do, or if a clone of the tensor outlives `work`, the slice is replaced by a new one of the
    /// same length, and the old memory is freed when it is no longer used.
    ///
    /// ```no_run
    /// use disco_core::{CommunicatorExt as _, Reduction, Result, WorkerContext};
    /// use disco_nccl::cuda::WorkerStream;
    /// use disco_nccl::cudarc::driver::{CudaSlice, CudaStream};
    ///
    /// /// Sums `gradient` over all workers. `stream` has the kernels that write it and those that read the sums.
    /// fn sum(ctx: &mut WorkerContext, stream: &CudaStream, gradient: &mut CudaSlice<f32>) -> Result<()> {
    ///     let worker = WorkerStream::of(ctx.queue())?;
    ///     worker.lend(gradient, stream, |tensor| ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum))
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of `work` and of [`WorkerStream::fence_from`]; the slice is memory of another device;
    /// [`Error::State`]: a clone of the tensor outlives `work`.
    pub fn lend<T: Element + DeviceRepr, R>(
        &self,
        slice: &mut CudaSlice<T>,
        stream: &CudaStream,
        work: impl FnOnce(&Tensor) -> Result<R>,
    ) -> Result<R> {
        self.check(stream, "lend")?;
        if slice.context() != self.stream().context() {
            let (device, ordinal) = (self.runtime().device(), slice.ordinal());
            return Err(Error::invalid(format!(
                "lend: memory of cuda:{ordinal} can't be used by the worker on {device}"
            )));
        }
        let is_capturing = self.runtime().is_capturing()?;
        if !is_capturing {
            self.open_to_peers()?;
        }
        self.fence_from(stream)?;
        let mut loan = Loan { worker: self, slice, keeper: Keeper::new(self.runtime()), is_over: false };
        let result = loan.run(work);
        let fenced = self.fence_to(stream);
        // A graph keeps the tensors of its operations.
        let is_kept = !is_capturing && !loan.is_returned();
        // Nothing of a capture has run.
        loan.is_over = is_capturing || (result.is_ok() && fenced.is_ok() && !is_kept);
        drop(loan);
        let result = result?;
        fenced?;
        if is_kept {
            Err(Error::state(
                "lend: a clone of the lent tensor is still in use; the program's memory was replaced, and its elements \
                 are unspecified: drop all clones before the end of the operation",
            ))
        } else {
            Ok(result)
        }
    }
}

/// A slice that is lent. Drop, also by a panic of the work, ensures that the program gets no memory that is in use.
struct Loan<'a, T: Element + DeviceRepr> {
    worker: &'a WorkerStream,
    slice: &'a mut CudaSlice<T>,
    keeper: Arc<Keeper<T>>,
    /// Whether later work of the program's stream waits for all work on the slice, and no tensor has the memory.
    is_over: bool,
}

/// The owner of lent memory, which the storage of the tensor shares with the loan. It gets the slice only if the program
/// can't have the slice back.
struct Keeper<T: Element> {
    runtime: Arc<Runtime>,
    slice: Mutex<Option<CudaSlice<T>>>,
}

impl<T: Element + DeviceRepr> Loan<'_, T> {
    fn run<R>(&mut self, work: impl FnOnce(&Tensor) -> Result<R>) -> Result<R> {
        let (device, len, stream) = (self.worker.runtime().device(), self.slice.len(), self.worker.stream());
        // cudarc skips its waits while its context has the error of an earlier call.
        _ = stream.context().check_err();
        // The guard makes the worker's stream wait for all streams on which cudarc has seen uses of the slice. Its drop
        // records the write.
        let (pointer, guard) = self.slice.device_ptr_mut(stream);
        check("cuStreamWaitEvent", stream.context().check_err())?;
        let owner = Box::new(self.keeper.clone());
        // SAFETY: the slice has `len` elements on this device, and every bit pattern is a valid element. The slice stays
        // borrowed until `self` is dropped, and this drop gives it to the owner if the storage still exists.
        let storage = unsafe { Storage::from_raw(pointer as *mut u8, len * size_of::<T>(), device, owner) };
        let result = work(&Tensor::from_storage(storage, T::DTYPE, [len as i64])?)?;
        drop(guard);
        check("cuEventRecord", stream.context().check_err()).map(|()| result)
    }

    /// Whether no tensor has the memory any more.
    fn is_returned(&mut self) -> bool {
        Arc::get_mut(&mut self.keeper).is_some()
    }

    /// Gives the memory to its keeper, and other memory to the program.
    fn replace(&mut self) {
        let device = self.worker.runtime().device();
        tracing::warn!(%device, "memory of the program is still in use after an operation, and is replaced");
        let replacement = self.allocate().unwrap_or_else(|error| {
            tracing::error!(%device, %error, "the device has no memory for it: the program gets an empty slice");
            self.empty()
        });
        let slice = mem::replace(self.slice, replacement);
        *sync::lock(&self.keeper.slice) = Some(slice);
    }

    /// A slice of the same length, of the program's stream. Its elements are unspecified.
    fn allocate(&self) -> Result<CudaSlice<T>> {
        // cudarc allocates nothing while its context has the error of an earlier call.
        _ = self.slice.context().check_err();
        // SAFETY: every bit pattern is a valid element.
        check("cuMemAlloc", unsafe { self.slice.stream().alloc(self.slice.len()) })
    }

    /// An empty slice, made without a call of the driver.
    fn empty(&self) -> CudaSlice<T> {
        let (stream, context) = (self.worker.stream(), self.worker.stream().context());
        // With event tracking, cudarc makes events for the slice, and panics if that fails.
        // SAFETY: only the slice that is made below is not tracked, and it has no elements.
        unsafe { context.disable_event_tracking() };
        // SAFETY: a slice without elements needs no memory.
        let empty = unsafe { stream.upgrade_device_ptr(0, 0) };
        // SAFETY: this restores cudarc's default.
        unsafe { context.enable_event_tracking() };
        empty
    }
}

impl<T: Element + DeviceRepr> Drop for Loan<'_, T> {
    fn drop(&mut self) {
        let is_usable = self.is_over || (self.is_returned() && self.worker.runtime().wait_until_unused());
        if !is_usable {
            self.replace();
        }
    }
}

impl<T: Element> Keeper<T> {
    fn new(runtime: &Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime: runtime.clone(), slice: Mutex::new(None) })
    }
}

impl<T: Element> Drop for Keeper<T> {
    fn drop(&mut self) {
        if let Some(slice) = sync::lock(&self.slice).take() {
            self.runtime.drop_when_unused(slice);
        }
    }
}
