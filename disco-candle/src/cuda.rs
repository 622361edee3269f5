//! Memory of candle's CUDA storage, lent to a tensor of Disco while a collective is enqueued.
//!
//! Candle computes on a stream of its own: by default the per-thread default stream, which NCCL must never get, because
//! its handle means another stream on NCCL's threads. [`WorkerStream::lend`] orders candle's stream and the worker's
//! stream by events, both ways, without waiting.
//!
//! This file was type-checked against candle's CUDA code, without a GPU. `WorkerStream` has tests on a double of the
//! driver and of NCCL.

use std::ops::Range;
use std::sync::Arc;

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::{CudaStorage, CudaStorageSlice};
use disco_core::{Error, Result, Tensor};
use disco_nccl::cuda::WorkerStream;
use disco_nccl::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError, ValidAsZeroBits};

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

/// An error of a function of cudarc.
fn check<T>(function: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| {
        let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
        let message = text.unwrap_or_else(|_| "the driver does not describe this code".into());
        Error::Library { backend: "cuda", function, code: error.0 as i64, message }
    })
}
