//! Large tensors beside a packet: in shared memory of one machine, or in the memory of a transfer.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::object::index;
use super::parts::{object_head, read_axes, read_dtype, tensor_bytes, write_dtype};
use super::transfer::Received;
use super::{INLINE_LIMIT, Reader, WireError, Writer};
use crate::device::Device;
use crate::error::{Error, Memory, Result};
use crate::shape::Shape;
use crate::shared_memory::{MappedSnapshot, ReusedMemory, Snapshot};
use crate::tensor::{Storage, Tensor};
use crate::value::Value;

/// The memory beside a packet that is being read.
#[derive(Debug)]
pub(super) struct Beside {
    /// Or why this end does not have it.
    memory: Result<TensorMemory, WireError>,
    /// End of the last tensor taken.
    taken: usize,
}

/// The owner of the memory.
#[derive(Clone, Debug)]
enum TensorMemory {
    Mapped(Arc<MappedSnapshot>),
    /// The memory of a transfer, used by this packet alone.
    Received(Arc<Storage>),
}

impl WireError {
    /// A tensor that this end can't make or use.
    pub fn of_tensor(error: Error) -> Self {
        match error {
            Error::OutOfMemory { bytes, memory, why } => {
                Self::NoMemory { bytes, is_shared: memory == Memory::Shared, why }
            }
            error => Self::TensorKind(error.to_string()),
        }
    }
}

impl Beside {
    pub(super) fn new(memory: Result<Arc<MappedSnapshot>, WireError>) -> Self {
        Self { memory: memory.map(TensorMemory::Mapped), taken: 0 }
    }

    /// The memory of a transfer; none if the transfer is incomplete.
    pub(super) fn of_transfer(received: Received) -> Option<Self> {
        let memory = received.into_memory()?.storage().clone();
        Some(Self { memory: Ok(TensorMemory::Received(memory)), taken: 0 })
    }

    /// The memory of the next tensor. Tensors lie in the order of the packet and do not overlap, so each byte has one
    /// borrow flag.
    fn take(&mut self, place: u64, bytes: usize) -> Result<Arc<Storage>, WireError> {
        let memory = self.memory.clone()?;
        let invalid = WireError::Expected("the place of a tensor in shared memory");
        let start = usize::try_from(place).ok().filter(|start| *start >= self.taken && start.is_multiple_of(64));
        let end = start.and_then(|start| start.checked_add(bytes)).filter(|end| *end <= memory.byte_len());
        let (Some(start), Some(end)) = (start, end) else { return Err(invalid) };
        self.taken = end;
        let pointer = memory.pointer().wrapping_add(start);
        // SAFETY: the range lies inside the memory, which the boxed clone keeps alive. No other process changes the
        // memory; if it is used again, not before the reply, and this end drops the frame's storages before it decodes another. No other storage in use covers the range: `taken` grows, and a transfer's memory is private to this
        // packet.
        Ok(unsafe { Storage::from_raw(pointer, bytes, Device::CPU, Box::new(memory)) })
    }
}

impl TensorMemory {
    fn pointer(&self) -> *mut u8 {
        match self {
            TensorMemory::Mapped(mapped) => mapped.pointer(),
            TensorMemory::Received(storage) => storage.pointer(),
        }
    }

    fn byte_len(&self) -> usize {
        match self {
            TensorMemory::Mapped(mapped) => mapped.byte_len(),
            TensorMemory::Received(storage) => storage.byte_len(),
        }
    }
}

/// A copy of the large tensors among `values` in shared memory, at the places of [`layout`]; none if there is no large
/// tensor.
///
/// # Errors
/// A tensor is not a contiguous host tensor, or is being written to; the system has too little memory.
pub(super) fn snapshot<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<Option<Snapshot>> {
    let (tensors, bytes) = layout(values);
    let parts = tensors.into_iter().map(|(place, tensor)| Ok((place, tensor_bytes(tensor)?)));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    if parts.is_empty() {
        Ok(None)
    } else {
        Snapshot::copy(bytes, parts.iter().map(|(at, bytes)| (*at, &**bytes))).map(Some)
    }
}

/// A copy of a tensor in memory that is used again; none if it is no large contiguous host tensor, or there is no memory.
pub(crate) fn snapshot_in(memory: &ReusedMemory, tensor: &Tensor) -> Option<Arc<Snapshot>> {
    let bytes = tensor_bytes(tensor).ok().filter(|bytes| bytes.len() > INLINE_LIMIT)?;
    memory.copy(&bytes).map(Arc::new)
}

/// The large tensors among `values` with their offsets in the memory beside the packet, and the size of that memory.
pub(super) fn layout<'a>(values: impl IntoIterator<Item = &'a Value>) -> (Vec<(usize, &'a Tensor)>, usize) {
    let (mut layout, mut tensors) = (Writer::with_memory_beside(), Vec::new());
    let mut place = |tensor: &'a Tensor| {
        if tensor.byte_len() > INLINE_LIMIT
            && let Some(place) = layout.place_beside(tensor.byte_len())
        {
            tensors.push((place, tensor));
        }
    };
    values.into_iter().for_each(|value| value.visit_tensors(&mut place));
    (tensors, layout.bytes_beside())
}

/// Appends a tensor whose elements lie beside the packet.
pub(super) fn write(tensor: &Tensor, place: usize, to: &mut Writer) -> Result<(), WireError> {
    object_head(to, index::TENSOR_BESIDE);
    write_dtype(tensor.dtype(), to);
    to.i32(tensor.shape().len() as i32);
    tensor.shape().iter().for_each(|extent| to.i64(*extent));
    to.u64(place as u64);
    Ok(())
}

/// Takes a tensor whose elements lie beside the packet. All such tensors of the packet share one mapping.
pub(super) fn read(from: &mut Reader<'_>, beside: Option<&mut Beside>) -> Result<Tensor, WireError> {
    let dtype = read_dtype(from)?;
    let axes = read_axes(from)?;
    let shape = Shape::from(from.list(axes)?);
    let place = from.u64()?;
    let beside = beside.ok_or(WireError::Expected("shared memory with the elements of a tensor"))?;
    let bytes = shape.elements().and_then(|n| n.checked_mul(dtype.size()));
    let bytes = bytes.ok_or(WireError::Expected("a tensor with a size"))?;
    Tensor::from_storage(beside.take(place, bytes)?, dtype, shape).map_err(WireError::of_tensor)
}
