//! Memory of a worker that outlives it.

#![allow(unsafe_code)]

use super::WorkerContext;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::link::{KeptName, keep};
use crate::shape::Shape;
use crate::tensor::{Storage, Tensor};

/// Memory that [`WorkerContext::keep`] has found or made.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Kept {
    /// A host tensor in this memory.
    pub tensor: Tensor,
    /// Whether the memory is new: then it has zeros, otherwise the bytes that were written last.
    pub is_new: bool,
}

impl WorkerContext {
    /// A host tensor in memory that outlives this worker: the program that has started the worker's process keeps it, under this name,
    /// until it is [discarded](Self::discard_kept) or the session ends. A worker that takes the place of this one finds what this
    /// one has written, up to the moment when it was lost. A value that was half written then is half there: programs write to memory that
    /// they do not need, and then note which one counts.
    ///
    /// ```
    /// use disco_core::{DType, Result, WorkerContext};
    ///
    /// /// Adds to a number, which outlives the worker.
    /// fn add(ctx: &mut WorkerContext, amount: i64) -> Result<i64> {
    ///     let kept = ctx.keep("sum", DType::I64, [1])?;
    ///     let mut sum = kept.tensor.view_mut::<i64>()?;
    ///     sum[0] += amount;
    ///     Ok(sum[0])
    /// }
    ///
    /// disco_core::register_function!("example.add", add);
    /// ```
    ///
    /// # Errors
    /// The memory has another size in bytes; the system has too little memory; the name has more than 256 bytes, or the worker keeps 256
    /// memories; the worker is one of TVM's.
    pub fn keep(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Kept> {
        self.keep_in(name, dtype, shape, false)
    }

    /// As [`keep`](Self::keep), but the system allocates each page when it is first written to: for large memory of which little
    /// may be used. Lack of memory then ends the process.
    ///
    /// # Errors
    /// As for [`keep`](Self::keep).
    pub fn keep_lazily(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Kept> {
        self.keep_in(name, dtype, shape, true)
    }

    fn keep_in(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>, is_lazy: bool) -> Result<Kept> {
        let mut is_new = false;
        let tensor = Tensor::in_new_storage(dtype, shape, |bytes| {
            if let Some(storage) = self.kept.get(name).filter(|storage| storage.byte_len() == bytes) {
                return Ok(storage.clone());
            }
            let (segment, is_made) = keep(&**self.link.keeper()?, name, bytes, is_lazy)?;
            is_new = is_made;
            // SAFETY: the mapping has at least so many bytes, and the storage keeps it. Only this worker and those that take its place
            // find the memory: a lost one is killed before another one starts. This worker maps it once at a time unless it has discarded it.
            let storage = unsafe { Storage::from_raw(segment.pointer(), bytes, Device::CPU, Box::new(segment)) };
            self.kept.insert(name.to_owned(), storage.clone());
            Ok(storage)
        })?;
        Ok(Kept { tensor, is_new })
    }

    /// Discards memory of this name. It is freed once its tensors are dropped. Returns whether there was any. A session
    /// calls the worker function `disco.discard_kept`.
    ///
    /// # Errors
    /// As for [`keep`](Self::keep).
    pub fn discard_kept(&mut self, name: &str) -> Result<bool> {
        self.kept.remove(name);
        self.link.keeper()?.discard(&KeptName::own(name))
    }
}

/// Worker function: see [`WorkerContext::discard_kept`].
fn discard_kept(ctx: &mut WorkerContext, name: String) -> Result<bool> {
    ctx.discard_kept(&name)
}

crate::register_function!("disco.discard_kept", discard_kept);
