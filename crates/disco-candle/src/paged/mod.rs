//! Attention to keys and values in blocks.
//!
//! ```text
//! plan            which tokens attend to which blocks
//! memory          where the keys and values of a layer are
//! host            the computation on the host
//!   vectors       sums over the elements of heads
//! launch          the kernel of a launch on a CUDA device, its grid and its numbers
//! cuda            the launch; the kernels are compiled once in a process
//!   attention.cu  the kernels
//! ```

#[cfg(feature = "cuda")]
mod cuda;
mod host;
#[cfg(any(test, feature = "cuda"))]
mod launch;
mod memory;
mod plan;
#[cfg(test)]
mod tests;
mod vectors;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Device, Error, Layout, Result, Shape, Tensor};
use half::{bf16, f16};

pub use memory::{Memory, Sizes as MemorySizes, host_dtype};
pub use plan::{BLOCK, Plan, Run};

use crate::products::Level;

/// The most elements of a head on CUDA devices.
pub const WIDEST: usize = 256;

/// What tokens attend to.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Scope<'a> {
    /// The sequences and heads.
    pub plan: &'a Plan<'a>,
    /// The number of tokens that a token attends to, itself included; with `looks_ahead`, so many on each side.
    pub window: Option<usize>,
    /// Whether a token also attends to later tokens of its run (bidirectional attention), on the host.
    pub looks_ahead: bool,
    /// Scores are between this and its negative.
    pub cap: Option<f64>,
    /// A score of each head beside those of its tokens, which takes a share and has no value.
    pub sinks: Option<&'a Sinks>,
}

/// Attention sinks: a score of each query head.
#[derive(Clone, Debug)]
pub struct Sinks {
    values: Vec<f32>,
    /// The values, f32 `[heads]`, on the device of queries.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA devices read it"))]
    uploaded: Tensor,
}

impl Sinks {
    /// Sinks for queries on a device.
    ///
    /// # Errors
    /// The device has too little memory.
    pub fn new(values: Vec<f32>, device: &Device) -> Result<Self> {
        Ok(Self { uploaded: Tensor::new(&values[..], device)?, values })
    }
}

impl<'a> Scope<'a> {
    /// All earlier tokens of the same sequence.
    pub fn new(plan: &'a Plan<'a>) -> Self {
        Self { plan, window: None, looks_ahead: false, cap: None, sinks: None }
    }
}

/// The attention of scaled queries `[1, heads, tokens, head_dim]` to keys and values `[blocks, kv heads, 16, head_dim]`: of the
/// shape of the queries. Sums have 32 bits. Slots behind a token may hold anything.
///
/// # Errors
/// The tensors have other shapes than the plan, are not contiguous, not on the host or a CUDA device, or of different types or
/// other types than f32, f16 and bf16; there are not as many sinks as heads. On a CUDA device: the plan or the sinks are not on it; heads are wider than 256
/// elements, or have an odd number of 16-bit elements; the kernels can't be compiled or launched.
pub fn attention(query: &Tensor, keys: &Tensor, values: &Tensor, scope: Scope<'_>) -> Result<Tensor> {
    query.apply_op3_no_bwd(keys, values, &scope)
}

/// Compiles the kernels for a CUDA device and loads them, so that no step waits for it. On the host, it does nothing.
///
/// # Errors
/// The log of NVRTC; errors of the driver.
pub fn prepare(device: &Device) -> Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::prepare(device),
        _ => Ok(()),
    }
}

impl CustomOp3 for Scope<'_> {
    fn name(&self) -> &'static str {
        "attention-to-blocks"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Layout,
        keys: &CpuStorage,
        keys_layout: &Layout,
        values: &CpuStorage,
        values_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let sizes = Sizes::of(self, [query_layout, keys_layout, values_layout])?;
        let level = Level::detect();
        let computed = match (query, keys, values) {
            (CpuStorage::F32(query), CpuStorage::F32(keys), CpuStorage::F32(values)) => {
                CpuStorage::F32(host::compute(self, level, &sizes.elements([query, keys, values]), |x| x))
            }
            (CpuStorage::F16(query), CpuStorage::F16(keys), CpuStorage::F16(values)) => {
                CpuStorage::F16(host::compute(self, level, &sizes.elements([query, keys, values]), f16::from_f32))
            }
            (CpuStorage::BF16(query), CpuStorage::BF16(keys), CpuStorage::BF16(values)) => {
                CpuStorage::BF16(host::compute(self, level, &sizes.elements([query, keys, values]), bf16::from_f32))
            }
            _ => return Err(other_types()),
        };
        Ok((computed, query_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        query: &CudaStorage,
        query_layout: &Layout,
        keys: &CudaStorage,
        keys_layout: &Layout,
        values: &CudaStorage,
        values_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        if self.looks_ahead {
            return Err(Error::Msg("CUDA devices have no attention to later tokens".to_owned()));
        }
        let sizes = Sizes::of(self, [query_layout, keys_layout, values_layout])?;
        Ok((cuda::compute(self, &sizes, [query, keys, values])?, query_layout.shape().clone()))
    }
}

fn other_types() -> Error {
    Error::Msg("attention to blocks needs queries, keys and values of one type of f32, f16 and bf16".into())
}

/// Sizes of queries, keys and values.
struct Sizes {
    kv_heads: usize,
    width: usize,
    /// Where the elements of queries, keys and values are in their storages.
    ranges: [(usize, usize); 3],
}

impl Scope<'_> {
    /// Checks that queries and the memory `[blocks, kv heads, 16, head_dim]` are those of the plan.
    fn check(&self, query: &Shape, memory: &Shape) -> Result<()> {
        let &Scope { plan, sinks, .. } = self;
        if let Some(Sinks { values, .. }) = sinks.filter(|sinks| sinks.values.len() != plan.heads) {
            return Err(Error::Msg(format!("{} attention sinks of {} heads", values.len(), plan.heads)));
        }
        let ((one, heads, tokens, width), (blocks, kv_heads, slots, key_width)) = (query.dims4()?, memory.dims4()?);
        let of_plan = (one, heads, tokens, kv_heads) == (1, plan.heads, plan.tokens, plan.groups.len());
        if !of_plan || blocks < plan.blocks || (slots, key_width) != (plan::BLOCK, width) {
            return Err(Error::Msg(format!(
                "attention of {query:?} to blocks {memory:?}; the plan has {} tokens, {} heads, {} kv heads and {} blocks",
                plan.tokens,
                plan.heads,
                plan.groups.len(),
                plan.blocks
            )));
        }
        Ok(())
    }
}

impl Sizes {
    fn of(scope: &Scope<'_>, layouts: [&Layout; 3]) -> Result<Self> {
        let (keys, values) = (layouts[1].shape(), layouts[2].shape());
        if keys != values {
            return Err(Error::Msg(format!("attention to blocks {keys:?} and {values:?}")));
        }
        scope.check(layouts[0].shape(), keys)?;
        let (_, kv_heads, _, width) = keys.dims4()?;
        let [query, keys, values] = layouts.map(Self::range);
        Ok(Self { kv_heads, width, ranges: [query?, keys?, values?] })
    }

    /// Where the elements of a tensor are in its storage.
    fn range(layout: &Layout) -> Result<(usize, usize)> {
        layout.contiguous_offsets().ok_or_else(|| Error::Msg("attention to blocks needs contiguous elements".into()))
    }

    /// The elements of queries, keys and values on the host.
    fn elements<'a, T>(&self, storages: [&'a [T]; 3]) -> host::Elements<'a, T> {
        let slice = |index: usize| &storages[index][self.ranges[index].0..self.ranges[index].1];
        let head = plan::BLOCK * self.width;
        let (query, keys, values) = (slice(0), slice(1), slice(2));
        host::Elements { query, keys, values, width: self.width, block: self.kv_heads * head, head }
    }
}
