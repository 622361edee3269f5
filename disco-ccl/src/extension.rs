//! What communicators of NCCL and RCCL have beside those of other backends.

use std::slice;

use disco_core::{Communicator, Error, Op, Result, Tensor};

use crate::communicator::Communicator as Ranked;
use crate::p2p::P2pFastPath;

// Calls make the device current on the thread that calls, and the library takes calls of any thread, one at a time.
const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<Ranked>();
};

/// A communicator of `nccl`, `cuda_p2p`, `rccl` or `rocm_p2p`, for what only these have.
#[derive(Debug)]
pub struct Extension<'c> {
    comm: &'c mut dyn Communicator,
}

/// Gives the extension of a communicator that NCCL or RCCL stands behind, also through the wrappers of a worker's context.
///
/// # Errors
/// [`Error::Unsupported`]: the communicator is another backend's.
pub fn extension(comm: &mut dyn Communicator) -> Result<Extension<'_>> {
    match comm.extension().is_some_and(|extension| extension.is::<Ranked>()) {
        true => Ok(Extension { comm }),
        false => Err(unsupported()),
    }
}

impl<'c> Extension<'c> {
    /// Runs a sum of inputs that each rank multiplies by a factor of its own first (`ncclRedOpCreatePreMulSum`), without a
    /// pass over memory for that. `op` is an `AllReduce`, `Reduce` or `ReduceScatter` of floats by
    /// [`Reduction::Sum`](disco_core::Reduction::Sum); the factor is rounded to their type. Reports and checks show it as `op`.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the library is too old, or has no factors of this type; [`Error::Invalid`]: another operation;
    /// as [`Communicator::enqueue`].
    pub fn premul_sum(&mut self, op: &Op, factor: f64) -> Result<()> {
        self.comm.enqueue_with(slice::from_ref(op), &mut |extension| match extension.downcast_mut::<Ranked>() {
            Some(comm) => comm.premul_sum(op, factor),
            None => Err(unsupported()),
        })
    }

    /// Tells the library that operations will use the memory behind this tensor often, which makes them faster for memory that the
    /// library has allocated (`ncclMemAlloc`); other memory stays as it is. The memory is kept as long as the communicator.
    ///
    /// # Errors
    /// The library's own, memory of another device, [`Error::Broken`].
    pub fn register(&mut self, tensor: &Tensor) -> Result<()> {
        let comm = self.comm.extension().and_then(|extension| extension.downcast_mut::<Ranked>());
        comm.ok_or_else(unsupported)?.register(tensor)
    }

    /// The communicator's way around its library, by memory that ranks share.
    ///
    /// # Errors
    /// [`Error::Missing`]: its backend has none.
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
