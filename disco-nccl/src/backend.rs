//! The backend as the registry has it.

use std::sync::OnceLock;

use disco_ccl::{Library, Vendor};
use disco_core::{
    Backend, Communicator, DType, DeviceKind, Error, Probe, Queue, Rendezvous, Result, Seat, Shape, Tensor,
    Unavailable, World,
};

use crate::cuda;

/// The backend named `nccl`: device memory, one GPU a rank.
#[derive(Clone, Copy, Debug)]
pub struct Nccl;

/// The backend as a value.
pub static BACKEND: Nccl = Nccl;

disco_core::register_backend!(BACKEND);

const NAME: &str = "nccl";

const VENDOR: Vendor = Vendor {
    backend: NAME,
    name: "NCCL",
    variable: "DISCO_NCCL_LIBRARY",
    candidates: &["libnccl.so.2", "libnccl.so", "/usr/local/cuda/lib64/libnccl.so.2", "/opt/cuda/lib64/libnccl.so.2"],
    wheels: &["nvidia/nccl/lib/libnccl.so.2"],
};

/// NCCL, looked for once: for those who call it themselves.
///
/// # Errors
/// Every candidate and why it would not do.
pub fn library() -> Result<&'static Library, Unavailable> {
    static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::find(VENDOR)).as_ref().map_err(Clone::clone)
}

/// A zeroed tensor like [`WorkerContext::empty`](disco_core::WorkerContext::empty) makes, in memory that NCCL has allocated
/// (`ncclMemAlloc`): where [registered](Communicator::register), its fastest ways are open to it. For the stream of this queue alone.
///
/// # Errors
/// An impossible shape, no room, a queue of another kind of device, no NCCL.
pub fn empty(queue: &mut (dyn Queue + 'static), dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let bytes = shape.elements().and_then(|elements| elements.checked_mul(dtype.size()));
    let bytes = bytes.ok_or_else(|| Error::invalid(format!("{dtype}{shape} is no shape that memory could hold")))?;
    let storage = library()?.alloc(&cuda::runtime(queue)?, bytes)?;
    cuda::clear(queue, &storage)?;
    Tensor::from_storage(storage, dtype, shape)
}

impl Backend for Nccl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device_kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }

    fn probe(&self) -> Result<Probe, Unavailable> {
        let library = library()?;
        let details = cuda::details()?;
        Ok(Probe { library: library.file().to_owned(), version: format!("NCCL {}", library.version()), details })
    }

    fn rendezvous(&self, _: &World) -> Result<Rendezvous> {
        library()?.rendezvous()
    }

    fn connect(&self, seat: Seat<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
        let runtime = cuda::runtime(seat.queue)?;
        Ok(Box::new(library()?.connect(runtime, seat, at)?))
    }
}
