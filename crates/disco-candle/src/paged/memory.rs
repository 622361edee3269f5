//! The memory of keys and values of a layer.

use candle_core::{CpuStorage, CustomOp1, DType, Device, Error, Layout, Result, Shape, Tensor, WithDType};
use disco_core::Tensor as HostTensor;
use half::{bf16, f16};

use super::{BLOCK, Plan, Scope, attention, host, other_types};
use crate::products::{Element, Level};
use crate::to_candle;

/// Keys and values of a layer, in blocks of 16 tokens.
#[derive(Debug)]
pub struct Memory {
    sizes: Sizes,
    place: Place,
}

/// The sizes of a [`Memory`].
#[allow(clippy::exhaustive_structs, reason = "these are all")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of kv heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// Whether there are values; otherwise the keys are the values, too.
    pub has_values: bool,
}

#[derive(Debug)]
enum Place {
    /// On a device, `[blocks, kv heads, 16, width]` each.
    Device { keys: Tensor, values: Option<Tensor> },
    /// On the host, `[kv heads, blocks, 16, width]` each.
    Host { keys: HostTensor, values: Option<HostTensor> },
}

impl Sizes {
    /// Number of elements of the keys, which is also that of the values.
    fn elements(&self) -> usize {
        self.blocks * self.kv_heads * BLOCK * self.width
    }

    /// Number of elements of keys and values.
    pub fn all_elements(&self) -> usize {
        self.elements() * (1 + usize::from(self.has_values))
    }
}

impl Memory {
    /// Zeroed memory on a device.
    ///
    /// # Errors
    /// The device has too little memory; on the host, the type is none of f32, f16 and bf16.
    pub fn zeros(sizes: Sizes, dtype: DType, device: &Device) -> Result<Self> {
        if device.is_cpu() {
            let all = sizes.all_elements();
            return Self::within(sizes, &HostTensor::zeros(host_dtype(dtype)?, [all]).map_err(to_candle)?, 0);
        }
        let zeros = || Tensor::zeros((sizes.blocks, sizes.kv_heads, BLOCK, sizes.width), dtype, device);
        let place = Place::Device { keys: zeros()?, values: sizes.has_values.then(zeros).transpose()? };
        Ok(Self { sizes, place })
    }

    /// Memory of [`Sizes::all_elements`] elements within a host tensor, from its element `first` on, as it is.
    ///
    /// # Errors
    /// The tensor is smaller, or none of f32, f16 and bf16.
    pub fn within(sizes: Sizes, tensor: &HostTensor, first: usize) -> Result<Self> {
        let shape = [sizes.kv_heads, sizes.blocks, BLOCK, sizes.width];
        let at = |number: usize| tensor.window(first + number * sizes.elements(), shape).map_err(to_candle);
        let place = Place::Host { keys: at(0)?, values: sizes.has_values.then(|| at(1)).transpose()? };
        Ok(Self { sizes, place })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        let Self { sizes, place } = self;
        match place {
            Place::Device { keys, .. } => sizes.all_elements() * keys.dtype().size_in_bytes(),
            Place::Host { keys, values } => keys.byte_len() + values.as_ref().map_or(0, HostTensor::byte_len),
        }
    }

    /// Moves the blocks to new memory for `blocks` blocks, which are more.
    ///
    /// # Errors
    /// As for [`zeros`](Self::zeros).
    pub fn grow(&mut self, blocks: usize) -> Result<()> {
        let sizes = Sizes { blocks, ..self.sizes };
        match &mut self.place {
            Place::Device { keys, values } => {
                for tensor in std::iter::once(keys).chain(values) {
                    let shape = (blocks, sizes.kv_heads, BLOCK, sizes.width);
                    let larger = Tensor::zeros(shape, tensor.dtype(), tensor.device())?;
                    larger.slice_set(tensor, 0, 0)?;
                    *tensor = larger;
                }
            }
            Place::Host { keys, values } => {
                for tensor in std::iter::once(keys).chain(values) {
                    let shape = [sizes.kv_heads, blocks, BLOCK, sizes.width];
                    let larger = HostTensor::zeros(tensor.dtype(), shape).map_err(to_candle)?;
                    let (from, to) = (self.sizes.blocks * BLOCK * sizes.width, blocks * BLOCK * sizes.width);
                    for head in 0..sizes.kv_heads {
                        let (old, new) = (tensor.window(head * from, [from]), larger.window(head * to, [from]));
                        new.and_then(|new| new.copy_from(&old?)).map_err(to_candle)?;
                    }
                    *tensor = larger;
                }
            }
        }
        self.sizes = sizes;
        Ok(())
    }

    /// Stores keys, and values if it has some, `[1, kv heads, tokens, width]`, of the tokens of a plan. `rows` has their places on a device,
    /// heads first, u32 `[kv heads * tokens, 1]`: rows of `width` elements. The host finds them in the plan.
    ///
    /// # Errors
    /// The tensors have other shapes, are elsewhere, or of another type; errors of candle.
    pub fn store(&self, plan: &Plan<'_>, rows: &Tensor, keys: &Tensor, values: Option<&Tensor>) -> Result<()> {
        let Sizes { kv_heads, width, blocks, has_values } = self.sizes;
        let shape = [1, kv_heads, plan.tokens, width];
        let is_same = |new: &Tensor| new.dims() == shape;
        if has_values != values.is_some() || ![keys].into_iter().chain(values).all(is_same) || plan.blocks > blocks {
            return Err(Error::Msg(format!(
                "keys {:?} and values {:?} of a plan of {} blocks in a memory of {:?}",
                keys.shape(),
                values.map(Tensor::shape),
                plan.blocks,
                self.sizes
            )));
        }
        match &self.place {
            Place::Device { keys: own, values: own_values } => {
                let rows = rows.broadcast_as((rows.dim(0)?, width))?.contiguous()?;
                let store = |own: &Tensor, new: &Tensor| {
                    own.reshape(((), width))?.scatter_set(&rows, &new.reshape(((), width))?, 0)
                };
                store(own, keys)?;
                own_values.iter().zip(values).try_for_each(|(own, new)| store(own, new))
            }
            Place::Host { keys: own, values: own_values } => {
                self.store_on_host(plan, own, keys)?;
                own_values.iter().zip(values).try_for_each(|(own, new)| self.store_on_host(plan, own, new))
            }
        }
    }

    fn store_on_host(&self, plan: &Plan<'_>, own: &HostTensor, new: &Tensor) -> Result<()> {
        match new.dtype() {
            DType::F32 => self.copy::<f32>(plan, own, new),
            DType::F16 => self.copy::<f16>(plan, own, new),
            DType::BF16 => self.copy::<bf16>(plan, own, new),
            _ => Err(other_types()),
        }
    }

    fn copy<T: WithDType + disco_core::Element>(&self, plan: &Plan<'_>, own: &HostTensor, new: &Tensor) -> Result<()> {
        let Sizes { blocks, width, kv_heads, .. } = self.sizes;
        let new = new.contiguous()?;
        let (storage, layout) = new.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else { return Err(other_types()) };
        let new = &T::cpu_storage_as_slice(storage)?[layout.start_offset()..];
        let mut own = own.view_mut::<T>().map_err(to_candle)?;
        let mut from = 0;
        for run in plan.runs {
            let mut position = run.first;
            // As many tokens at a time as are beside each other.
            while position < run.first + run.count {
                let (block, slot) = (run.table[position / BLOCK] as usize, position % BLOCK);
                let count = (BLOCK - slot).min(run.first + run.count - position);
                for head in 0..kv_heads {
                    let to = ((head * blocks + block) * BLOCK + slot) * width;
                    let from = (head * plan.tokens + from) * width;
                    own[to..to + count * width].copy_from_slice(&new[from..from + count * width]);
                }
                (position, from) = (position + count, from + count);
            }
        }
        Ok(())
    }

    /// The attention of scaled queries `[1, heads, tokens, width]`: see [`attention`].
    ///
    /// # Errors
    /// As there.
    pub fn attend(&self, query: &Tensor, scope: Scope<'_>) -> Result<Tensor> {
        match &self.place {
            Place::Device { keys, values } => attention(query, keys, values.as_ref().unwrap_or(keys), scope),
            Place::Host { keys, values } => {
                let values = values.as_ref().unwrap_or(keys);
                query.apply_op1_no_bwd(&OnHost { scope, sizes: self.sizes, keys, values })
            }
        }
    }
}

/// The type of elements of host tensors of Disco.
///
/// # Errors
/// It is none of f32, f16 and bf16.
pub fn host_dtype(dtype: DType) -> Result<disco_core::DType> {
    match dtype {
        DType::F32 => Ok(disco_core::DType::F32),
        DType::F16 => Ok(disco_core::DType::F16),
        DType::BF16 => Ok(disco_core::DType::BF16),
        _ => Err(other_types()),
    }
}

/// Attention to memory on the host.
struct OnHost<'a> {
    scope: Scope<'a>,
    sizes: Sizes,
    keys: &'a HostTensor,
    values: &'a HostTensor,
}

impl OnHost<'_> {
    fn compute<T: WithDType + Element + disco_core::Element>(
        &self,
        query: &CpuStorage,
        layout: &Layout,
        narrow: impl Fn(f32) -> T,
    ) -> Result<CpuStorage> {
        let Sizes { blocks, kv_heads, width, .. } = self.sizes;
        let memory = (blocks, kv_heads, BLOCK, width);
        let range = super::Sizes::range(layout)?;
        self.scope.check(layout.shape(), &memory.into())?;
        let query = &T::cpu_storage_as_slice(query)?[range.0..range.1];
        let (keys, values) = (self.keys.view::<T>().map_err(to_candle)?, self.values.view::<T>().map_err(to_candle)?);
        let block = BLOCK * width;
        let elements = host::Elements { query, keys: &keys, values: &values, width, block, head: blocks * block };
        Ok(T::to_cpu_storage_owned(host::compute(&self.scope, Level::detect(), &elements, narrow)))
    }
}

impl CustomOp1 for OnHost<'_> {
    fn name(&self) -> &'static str {
        "attention-to-memory"
    }

    fn cpu_fwd(&self, query: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let computed = match query {
            CpuStorage::F32(_) => self.compute::<f32>(query, layout, |x| x),
            CpuStorage::F16(_) => self.compute(query, layout, f16::from_f32),
            CpuStorage::BF16(_) => self.compute(query, layout, bf16::from_f32),
            _ => Err(other_types()),
        };
        Ok((computed?, layout.shape().clone()))
    }
}
