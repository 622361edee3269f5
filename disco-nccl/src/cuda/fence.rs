//! Fences between a worker's stream and streams of the program.

#![allow(unsafe_code)]

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaStream, result, sys};
use disco_ccl::{EventHandle, Graph, Queue, Runtime};
use disco_core::{Communicator, DeviceKind, Error, Result, sync};

use super::error::check;
use super::stream::Stream;
use super::{current, driver, pool};

/// The stream of a worker's queue, for programs that compute on a stream of their own, as candle does.
///
/// The worker's collectives run on the worker's stream. NCCL never gets a stream of the program, so the program's stream
/// may be any stream of the device: also the legacy default stream, and the per-thread default stream, whose handle
/// means another stream on NCCL's own threads. Instead, fences order the two streams by events. They make no thread
/// wait:
///
/// ```text
/// program's stream   kernels ─┐                           ┌─▶ kernels
///                             │ fence_from         fence_to │
/// worker's stream             └─▶ collectives ────────────┘
/// ```
///
/// Waits with deadlines and aborts concern the worker's stream, as without fences. A collective whose input the program
/// never completes ends at the deadline of the worker's wait. After an abort, the worker's stream passes its fence, and
/// the program's stream continues with unspecified elements.
///
/// ```no_run
/// use disco_core::{CommunicatorExt as _, DType, Reduction, Result, WorkerContext};
/// use disco_nccl::cuda::WorkerStream;
/// use disco_nccl::cudarc::driver::CudaStream;
///
/// /// A worker function: sums a tensor that kernels of the program fill on their own stream.
/// fn sum(ctx: &mut WorkerContext, own: &CudaStream) -> Result<()> {
///     let worker = WorkerStream::of(ctx.queue())?;
///     let gradient = ctx.empty(DType::F32, [1 << 20])?;
///     worker.fence_to(own)?; // the worker's stream fills new tensors with zeros
///     // … launch kernels on `own` that write the tensor …
///     worker.fence_from(own)?;
///     ctx.comm()?.all_reduce_in_place(&gradient, Reduction::Sum)?;
///     worker.fence_to(own)?;
///     // … launch kernels on `own` that read the sums …
///     Ok(())
/// }
/// ```
///
/// [`WorkerStream::capture`] captures work of both streams in one graph.
///
/// Memory that the program has allocated through cudarc is [lent](WorkerStream::lend) to a collective; this includes the
/// fences. Clones share the stream.
#[derive(Clone)]
pub struct WorkerStream(Arc<Shared>);

/// The worker's runtime, and an event of its device.
struct Shared {
    runtime: Arc<Runtime>,
    stream: Arc<CudaStream>,
    /// Recorded by each fence. A wait for an event keeps the record that was the last at the time of the call, so the
    /// lock is held for both calls, and the event can be reused at once.
    event: Mutex<EventHandle>,
    /// Set once peers have access to memory that the program lends.
    is_pool_open: AtomicBool,
}

impl WorkerStream {
    /// The stream of a worker's queue.
    ///
    /// # Errors
    /// The queue is on a device of another kind; errors of the driver.
    pub fn of(queue: &mut (dyn disco_core::Queue + 'static)) -> Result<Self> {
        Self::of_runtime(Queue::of(queue, DeviceKind::Cuda)?.runtime())
    }

    /// The stream of a communicator, which is that of the queue with which the communicator was connected.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the communicator is not one of `nccl` or `cuda_p2p`; errors of the driver.
    pub fn of_communicator(comm: &mut dyn Communicator) -> Result<Self> {
        Self::of_runtime(&disco_ccl::extension(comm)?.runtime()?)
    }

    fn of_runtime(runtime: &Arc<Runtime>) -> Result<Self> {
        let (runtime, stream) = (runtime.clone(), super::stream_of(runtime)?);
        runtime.make_current()?;
        let event = Mutex::new(runtime.driver().create_event()?);
        let is_pool_open = AtomicBool::new(false);
        Ok(Self(Arc::new(Shared { runtime, stream, event, is_pool_open })))
    }

    /// The stream itself, as a stream of cudarc.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }

    pub(super) fn runtime(&self) -> &Arc<Runtime> {
        &self.0.runtime
    }

    /// Gives peers access to memory that the program lends: NCCL lets the ranks of one process access each other's
    /// buffers, and memory of a pool is closed to other devices at first.
    pub(super) fn open_to_peers(&self) -> Result<()> {
        if !self.0.is_pool_open.load(Ordering::Relaxed) {
            pool::open_pool_to_accessors(self.0.runtime.device().ordinal)?;
            self.0.is_pool_open.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes later work of the worker's stream wait for all work that was submitted to `stream` so far. Does not block.
    ///
    /// For a per-thread default stream, the work is that of the calling thread.
    ///
    /// # Errors
    /// `stream` is on another device; only one of the streams is being captured; errors of the driver.
    pub fn fence_from(&self, stream: &CudaStream) -> Result<()> {
        self.check(stream, "fence_from")?;
        self.wait_for(stream)
    }

    /// Makes later work of `stream` wait for all work that was submitted to the worker's stream so far. Does not block.
    ///
    /// For a per-thread default stream, the later work is that of the calling thread.
    ///
    /// # Errors
    /// `stream` is on another device; only one of the streams is being captured; errors of the driver.
    pub fn fence_to(&self, stream: &CudaStream) -> Result<()> {
        self.check(stream, "fence_to")?;
        self.hold(stream)
    }

    /// Captures the work that `work` gives to the worker's stream and to `stream`, as a graph that can be launched many
    /// times, on the worker's stream. Fences and [loans](WorkerStream::lend) between the two streams become part of the
    /// graph, in which `stream` begins behind the worker's work so far, and all its work comes before the end.
    ///
    /// The work allocates memory that it also frees. It must not use cudarc's [event
    /// tracking](cudarc::driver::CudaContext::disable_event_tracking) for other memory, whose events are those of earlier
    /// work. [`Runtime::capture`] lists what else a capture refuses.
    ///
    /// # Safety
    /// Memory that `work` uses and does not allocate stays allocated until the last launch is done, and no clone of a lent
    /// tensor outlives `work`.
    ///
    /// ```no_run
    /// use disco_core::{CommunicatorExt as _, Reduction, Result, WorkerContext};
    /// use disco_nccl::cuda::{Graph, WorkerStream};
    /// use disco_nccl::cudarc::driver::{CudaSlice, CudaStream};
    ///
    /// /// Kernels of the program and the sum of their results, as one graph.
    /// fn step(ctx: &mut WorkerContext, stream: &CudaStream, gradient: &mut CudaSlice<f32>) -> Result<Graph> {
    ///     let worker = WorkerStream::of(ctx.queue())?;
    ///     // SAFETY: the program launches the graph while it has the gradient.
    ///     unsafe { worker.capture(stream, || {
    ///         // … launch kernels on `stream` that write the gradient …
    ///         worker.lend(gradient, stream, |tensor| ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum))
    ///     }) }
    /// }
    /// ```
    ///
    /// # Errors
    /// `stream` is on another device; one of the streams is being captured; the errors of [`Runtime::capture`] and of
    /// `work`.
    pub unsafe fn capture(&self, stream: &CudaStream, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.check(stream, "capture")?;
        self.runtime().capture(|| {
            self.hold(stream)?;
            work()?;
            self.wait_for(stream)
        })
    }

    /// Makes the worker's stream wait for `stream`.
    fn wait_for(&self, stream: &CudaStream) -> Result<()> {
        let event = sync::lock(&self.0.event);
        // SAFETY: the event exists until `self` is dropped, and belongs to the context of the borrowed stream.
        let recorded = unsafe { result::event::record(event.0.cast(), stream.cu_stream()) };
        check("cuEventRecord", recorded)?;
        // SAFETY: the event exists until `self` is dropped.
        unsafe { self.0.runtime.driver().wait_event(*event) }
    }

    /// Makes `stream` wait for the worker's stream.
    fn hold(&self, stream: &CudaStream) -> Result<()> {
        let event = sync::lock(&self.0.event);
        // SAFETY: the event exists until `self` is dropped.
        unsafe { self.0.runtime.driver().record_event(*event) }?;
        // SAFETY: the event exists until `self` is dropped, and the stream is borrowed; the function requires flags of
        // 0.
        let waits = unsafe { sys::cuStreamWaitEvent(stream.cu_stream(), event.0.cast(), 0) };
        check("cuStreamWaitEvent", waits.result())
    }

    /// Makes the device current, and refuses streams for which a fence is not possible.
    pub(super) fn check(&self, stream: &CudaStream, operation: &str) -> Result<()> {
        let (own, other) = (self.0.stream.context(), stream.context());
        if own != other {
            let device = self.0.runtime.device();
            let ordinal = other.ordinal();
            let why = if own.ordinal() == ordinal {
                "use the primary context (CudaContext::new)"
            } else {
                "use a stream of the worker's device"
            };
            return Err(Error::invalid(format!(
                "{operation}: the stream belongs to another CUDA context (of cuda:{ordinal}) than that of the worker on \
                 {device}: {why}"
            )));
        }
        // User code may have made another device current.
        current::set(own)?;
        let why = match (is_capturing(&self.0.stream)?, is_capturing(stream)?) {
            (true, false) => "the worker's stream is being captured",
            (false, true) => "the program's stream is being captured",
            // Streams that are both captured are taken to be in one capture, which includes the fence.
            _ => return Ok(()),
        };
        Err(Error::state(format!(
            "{operation}: {why}, and a fence would add the other stream to the capture: capture both with \
             WorkerStream::capture, or the collective alone with disco_nccl::cuda::capture"
        )))
    }
}

/// Whether a stream is being captured. The device is current.
fn is_capturing(stream: &CudaStream) -> Result<bool> {
    if driver::get().map_err(Error::from)?.graphs.is_err() {
        return Ok(false);
    }
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is borrowed, and `status` is writable.
    let queried = unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &mut status) };
    check("cuStreamIsCapturing", queried.result())?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

impl Drop for Shared {
    fn drop(&mut self) {
        let event = *sync::lock(&self.event);
        let driver: &dyn Any = self.runtime.driver();
        let Some(stream) = driver.downcast_ref::<Stream>() else { return };
        // SAFETY: this driver created the event, and it is destroyed once. Enqueued waits keep its record.
        disco_ccl::Driver::with_current(stream, &mut || unsafe {
            disco_ccl::Driver::destroy_event(stream, event);
        });
    }
}

disco_core::format_as!(Debug for WorkerStream, |it| "<worker's stream on {}>", it.0.runtime.device());
