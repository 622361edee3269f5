//! Functions that only communicators of NCCL and RCCL have.

use std::slice;
use std::sync::Arc;

use disco_core::{Communicator, Error, Op, Result, Tensor};

use crate::communicator::Communicator as Ranked;
use crate::p2p::P2pFastPath;
use crate::runtime::Runtime;

// The communicator is `Send`: each call makes the device current on its thread, and the library accepts calls of any
// thread, one at a time.
const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<Ranked>();
};

/// The functions that only communicators of `nccl`, `cuda_p2p`, `rccl` and `rocm_p2p` have.
#[derive(Debug)]
pub struct Extension<'c> {
    comm: &'c mut dyn Communicator,
}

/// Returns the extension of a communicator of NCCL or RCCL, also if a worker's context has wrapped the communicator.
///
/// # Errors
/// [`Error::Unsupported`]: the communicator is another backend's.
pub fn extension(comm: &mut dyn Communicator) -> Result<Extension<'_>> {
    if comm.extension().is_some_and(|extension| extension.is::<Ranked>()) {
        Ok(Extension { comm })
    } else {
        Err(unsupported())
    }
}

impl<'c> Extension<'c> {
    /// Runs a sum in which each rank multiplies its input by its own factor (`ncclRedOpCreatePreMulSum`). The library
    /// scales while it sums, without another pass over memory. `op` is an `AllReduce`, `Reduce` or `ReduceScatter` of
    /// floats by [`Reduction::Sum`](disco_core::Reduction::Sum). The factor is rounded to the dtype of `op`. Reports
    /// and checks show the operation as `op`.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the library is too old, or has no factors of this dtype. [`Error::Invalid`]: `op` is not
    /// a sum. The errors of [`Communicator::enqueue`].
    pub fn premul_sum(&mut self, op: &Op, factor: f64) -> Result<()> {
        self.comm.enqueue_with(slice::from_ref(op), &mut |extension| match extension.downcast_mut::<Ranked>() {
            Some(comm) => comm.premul_sum(op, factor),
            None => Err(unsupported()),
        })
    }

    /// Registers the whole memory of a tensor with the communicator (`ncclCommRegister`). Operations on registered
    /// memory are faster if the library has allocated the memory (`ncclMemAlloc`); on other memory, registration has no
    /// effect. The memory is kept as long as the communicator.
    ///
    /// # Errors
    /// The tensor is on another device; [`Error::Broken`]; errors of the library.
    pub fn register(&mut self, tensor: &Tensor) -> Result<()> {
        let comm = self.comm.extension().and_then(|extension| extension.downcast_mut::<Ranked>());
        comm.ok_or_else(unsupported)?.register(tensor)
    }

    /// The device and the stream on which the communicator runs.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the communicator is another backend's.
    pub fn runtime(&mut self) -> Result<Arc<Runtime>> {
        let comm = self.comm.extension().and_then(|extension| extension.downcast_ref::<Ranked>());
        comm.map(|comm| comm.runtime().clone()).ok_or_else(unsupported)
    }

    /// The communicator's operations over peer-to-peer memory, which bypass the library.
    ///
    /// # Errors
    /// [`Error::Missing`]: the backend has no peer-to-peer memory.
    pub fn p2p_fast_path(self) -> Result<&'c P2pFastPath> {
        let comm = self.comm.extension().and_then(|extension| extension.downcast_ref::<Ranked>());
        comm.and_then(Ranked::fast_path)
            .ok_or_else(|| Error::missing("this backend has no peer-to-peer memory: cuda_p2p has"))
    }
}

fn unsupported() -> Error {
    let operation = "what only NCCL and RCCL have".to_owned();
    Error::Unsupported { backend: "this backend", operation, dtype: None }
}
