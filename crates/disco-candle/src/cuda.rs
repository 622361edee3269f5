//! Memory of candle's CUDA storage, lent to a tensor of Disco while a collective is enqueued.
//!
//! Candle computes on a stream of its own: by default the per-thread default stream, which NCCL must never get, because
//! its handle means another stream on NCCL's threads. [`WorkerStream::lend`] orders candle's stream and the worker's
//! stream by events, both ways, without waiting.
//!
//! This file was compiled with candle's CUDA code, and a draft of it has run on a GPU (`docs/gpu-evidence.md`).
//! `WorkerStream` has tests on a double of the driver and of NCCL.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::{CudaStorage, CudaStorageSlice};
use candle_core::{CudaDevice, DType, Device};
use disco_core::{Error, Queue, Result, Tensor};
use disco_nccl::cuda::{Graph, WorkerStream};
use disco_nccl::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError, ValidAsZeroBits};

use crate::comm::{Comm, Stats};
use crate::error::to_candle;

/// The oldest compute capability that computes with bf16.
const BF16_CAPABILITY: (i32, i32) = (8, 0);

/// Matches a storage whose elements have a type of Disco: `$slice` is its memory, `$variant` its variant. `$slice_of` is the storage's
/// `slice`, borrowed as the body needs.
macro_rules! with_slice {
    ($storage:expr, $slice_of:expr, |$variant:ident, $slice:ident| $body:expr) => {
        with_slice!($storage, $slice_of, |$variant, $slice| $body; U8 U32 I16 I32 I64 BF16 F16 F32 F64)
    };
    ($storage:expr, $slice_of:expr, |$variant:ident, $slice:ident| $body:expr; $($dtype:ident)*) => {{
        let dtype = $storage.dtype();
        match $slice_of {
            $(CudaStorageSlice::$dtype($slice) => {
                #[allow(unused_imports, reason = "not each body makes a storage")]
                use CudaStorageSlice::$dtype as $variant;
                $body
            })*
            _ => Err(Error::invalid(format!("collectives of candle tensors do not support {}", dtype.as_str()))),
        }
    }};
}

/// Runs `run` on a tensor of the elements `range` of `storage`, without a copy. `run` enqueues a collective on the stream
/// of `worker`; later work of candle's stream runs after the collective.
///
/// After an error, the storage has the same memory, or new memory if the old one may still be in use. The elements are
/// unspecified.
///
/// # Errors
/// The storage has no dtype of Disco, or is on another device than the worker; the errors of `run`.
pub(crate) fn lend_storage(
    worker: &WorkerStream,
    storage: &mut CudaStorage,
    range: Range<usize>,
    run: impl FnOnce(&Tensor) -> Result<()>,
) -> Result<()> {
    let stream = storage.device.cuda_stream();
    let run = |all: &Tensor| run(&all.window(range.start, [range.len() as i64])?);
    with_slice!(storage, &mut storage.slice, |Variant, slice| worker.lend(slice, &stream, run))
}

/// A storage of `len` elements: the elements `range` of `source` at position `at`, zeros elsewhere.
///
/// # Errors
/// The storage has no dtype of Disco; errors of the driver.
pub(crate) fn arranged(source: &CudaStorage, range: Range<usize>, len: usize, at: usize) -> Result<CudaStorage> {
    let (device, stream) = (source.device.clone(), source.device.cuda_stream());
    let slice =
        with_slice!(source, &source.slice, |Variant, slice| Ok(Variant(arrange(slice, range, len, at, &stream)?)))?;
    Ok(CudaStorage { slice, device })
}

fn arrange<T: DeviceRepr + ValidAsZeroBits>(
    source: &CudaSlice<T>,
    range: Range<usize>,
    len: usize,
    at: usize,
    stream: &Arc<CudaStream>,
) -> Result<CudaSlice<T>> {
    let n = range.len();
    let mut arranged = check("alloc_zeros", stream.alloc_zeros(len))?;
    if n > 0 {
        let outside = || Error::invalid(format!("elements {range:?} at position {at} do not fit {len} elements"));
        let from = source.try_slice(range.clone()).ok_or_else(outside)?;
        let mut to = arranged.try_slice_mut(at..at + n).ok_or_else(outside)?;
        check("memcpy_dtod", stream.memcpy_dtod(&from, &mut to))?;
    }
    Ok(arranged)
}

/// A device of candle with a stream of its own: see [`device`](crate::device()).
pub(crate) fn device(device: disco_core::Device, dtype: DType) -> Result<Device> {
    let ordinal = usize::try_from(device.ordinal).map_err(|_| Error::invalid(format!("{device} has no number")))?;
    let made = Device::new_cuda_with_stream(ordinal);
    let made = made.map_err(|error| Error::invalid(format!("candle can't use {device}: {error}")))?;
    let cuda = made.as_cuda_device().map_err(|error| Error::invalid(error.to_string()))?;
    let capability = check("cuDeviceGetAttribute", cuda.cuda_stream().context().compute_capability())?;
    if dtype == DType::BF16 && capability < BF16_CAPABILITY {
        let (major, minor) = capability;
        return Err(Error::invalid(format!(
            "{device} has compute capability {major}.{minor}, and can't compute with bf16, which needs 8.0: use f16 or f32"
        )));
    }
    disco_nccl::cuda::keep_pool_memory(device.ordinal)?;
    // SAFETY: all uses of candle's memory are on the device's one stream, or on the worker's stream, which `lend` orders
    // with it by fences.
    unsafe { cuda.disable_event_tracking() };
    Ok(made)
}

/// Refuses to load `needed` bytes of weights that the device has no room for.
///
/// # Errors
/// The device has less free memory; errors of the driver.
pub fn require_memory(device: &CudaDevice, needed: u64) -> Result<()> {
    let stream = device.cuda_stream();
    let (free, all) = check("cuMemGetInfo", stream.context().mem_get_info())?;
    let free = free as u64 + disco_nccl::cuda::unused_pool_memory(stream.context().ordinal() as i32)?;
    if needed <= free {
        return Ok(());
    }
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let (ordinal, needed, free, all) = (stream.context().ordinal(), mib(needed), mib(free), mib(all as u64));
    Err(Error::invalid(format!(
        "cuda:{ordinal} has too little memory for this rank's part of the model: {needed} are needed, {free} of {all} are free; \
         use more ranks, or a smaller type"
    )))
}

/// Work of candle's stream and of the worker's stream, which a launch repeats.
#[derive(Debug)]
pub struct Captured {
    graph: Graph,
    worker: WorkerStream,
    stream: Arc<CudaStream>,
    comm: Comm,
    /// The collectives of a launch.
    stats: Stats,
}

/// The stream of the worker's queue.
///
/// # Errors
/// The queue is on a device of another kind; errors of the driver.
pub(crate) fn stream(comm: &Comm, queue: &mut (dyn Queue + 'static)) -> Result<WorkerStream> {
    let of_comm = comm.stream()?.filter(|stream| stream.stream().cu_stream().addr() == queue.raw().addr());
    of_comm.map_or_else(|| WorkerStream::of(queue), Ok)
}

/// Captures the work that `work` enqueues, and runs none of it. The caller has run `work` once, so that its kernels are
/// loaded. `work` frees all memory that it allocates.
///
/// # Safety
/// All other memory that `work` uses lives as long as the result, or until the last launch is done.
///
/// # Errors
/// The errors of `work`; an operation that a capture refuses; errors of the driver.
pub unsafe fn capture<E: From<candle_core::Error>>(
    comm: &Comm,
    queue: &mut (dyn Queue + 'static),
    device: &CudaDevice,
    work: impl FnOnce() -> std::result::Result<(), E>,
) -> std::result::Result<Captured, E> {
    let mut failure = None;
    let work = || {
        work().map_err(|error| {
            failure = Some(error);
            Error::state("the captured work has failed")
        })
    };
    let capture = || {
        let (worker, stream) = (self::stream(comm, queue)?, device.cuda_stream());
        // SAFETY: the caller keeps the memory that `work` uses.
        let (graph, stats) = comm.uncounted(|| unsafe { worker.capture(&stream, work) })?;
        Ok(Captured { graph: graph?, worker, stream, comm: comm.clone(), stats })
    };
    let captured: Result<Captured> = capture();
    captured.map_err(|error| failure.unwrap_or_else(|| to_candle(error).into()))
}

impl Captured {
    /// Repeats the work, behind all earlier work of candle's stream, and before all later work.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn launch(&self) -> candle_core::Result<()> {
        let launched = self.worker.fence_from(&self.stream).and_then(|()| self.graph.launch());
        let launched = launched.and_then(|()| self.worker.fence_to(&self.stream));
        launched.and_then(|()| self.comm.count(&self.stats)).map_err(to_candle)
    }
}

/// An error of a function of cudarc.
fn check<T>(function: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| {
        let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
        let message = text.unwrap_or_else(|_| "the driver does not describe this code".into());
        Error::Library { backend: "cuda", function, code: error.0 as i64, message }
    })
}
