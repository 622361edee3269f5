//! Import and export of DLPack tensors without a copy.
//!
//! The layouts are those of `dlpack.h`: the unversioned `DLManagedTensor`, which all frameworks exchange, and the versioned
//! one, by which a consumer learns that it may write.

#![allow(unsafe_code)]
#![allow(clippy::exhaustive_structs, reason = "the interface's")]

use std::any::Any;
use std::ffi::c_void;
use std::slice;
use std::sync::Arc;

use super::{Storage, Tensor, Window, extent};
use crate::device::{Device, DeviceKind};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLDevice {
    /// `DLDeviceType`.
    pub device_type: i32,
    /// Ordinal of the device.
    pub device_id: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLDataType {
    /// `DLDataTypeCode`.
    pub code: u8,
    /// Width of one lane.
    pub bits: u8,
    /// Number of lanes.
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// First byte of the allocation; the elements start `byte_offset` further.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// Number of axes.
    pub ndim: i32,
    /// Element type.
    pub dtype: DLDataType,
    /// `ndim` extents.
    pub shape: *mut i64,
    /// `ndim` strides in elements, or null for row-major.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// Private data of the producer.
    pub manager_ctx: *mut c_void,
    /// Called once by the consumer when it is done.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Versions with another number have another layout.
    pub major: u32,
    /// Later numbers add values of fields.
    pub minor: u32,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version of the layout.
    pub version: DLPackVersion,
    /// Private data of the producer.
    pub manager_ctx: *mut c_void,
    /// Called once by the consumer when it is done.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// [`DLManagedTensorVersioned::READ_ONLY`], or 0.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

impl DLManagedTensorVersioned {
    /// The version of this layout.
    pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };
    /// The consumer must not write.
    pub const READ_ONLY: u64 = 1;
}

/// What an exported tensor points to.
struct Export {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _tensor: Tensor,
}

/// The owner of an imported tensor's memory: calls the producer's deleter on drop.
struct Import(*mut DLManagedTensor);

// SAFETY: DLPack's deleter may be called on any thread.
unsafe impl Send for Import {}
// SAFETY: no method accesses the pointer through a shared reference.
unsafe impl Sync for Import {}

impl Drop for Import {
    fn drop(&mut self) {
        // SAFETY: `from_dlpack` took over a valid managed tensor, and its deleter is called only here.
        if let Some(deleter) = unsafe { (*self.0).deleter } {
            // SAFETY: the deleter is called once, with its own tensor.
            unsafe { deleter(self.0) }
        }
    }
}

impl Tensor {
    /// Exports the tensor to a DLPack consumer, which shares the elements and calls the deleter when it is done.
    ///
    /// The consumer does not check the borrow flag: the program must order writes itself.
    pub fn to_dlpack(&self) -> *mut DLManagedTensor {
        let (dl_tensor, export) = self.export();
        let managed = DLManagedTensor { dl_tensor, manager_ctx: export.cast(), deleter: Some(delete_export) };
        Box::into_raw(Box::new(managed))
    }

    /// As [`Tensor::to_dlpack`], for a consumer of the versioned layout, which may write.
    pub fn to_dlpack_versioned(&self) -> *mut DLManagedTensorVersioned {
        let (dl_tensor, export) = self.export();
        let managed = DLManagedTensorVersioned {
            version: DLManagedTensorVersioned::VERSION,
            manager_ctx: export.cast(),
            deleter: Some(delete_versioned),
            flags: 0,
            dl_tensor,
        };
        Box::into_raw(Box::new(managed))
    }

    /// The tensor for a consumer, and the leaked box that it points to.
    fn export(&self) -> (DLTensor, *mut Export) {
        let (code, bits) = self.dtype().dlpack();
        let device = self.device();
        let (shape, strides) = (self.0.shape.to_vec(), self.strides());
        let export = Box::into_raw(Box::new(Export { shape, strides, _tensor: self.clone() }));
        // SAFETY: `export` was just leaked, so it is valid and not shared.
        let lists = unsafe { &mut *export };
        let dl_tensor = DLTensor {
            data: self.0.storage.pointer().cast(),
            device: DLDevice { device_type: device.kind.dlpack(), device_id: device.ordinal },
            ndim: self.0.shape.len() as i32,
            dtype: DLDataType { code, bits, lanes: 1 },
            shape: lists.shape.as_mut_ptr(),
            strides: lists.strides.as_mut_ptr(),
            byte_offset: self.0.byte_offset as u64,
        };
        (dl_tensor, export)
    }

    /// Imports a tensor from a DLPack producer and shares its elements. The deleter runs when the last clone is
    /// dropped, on any thread, or at once on error.
    ///
    /// # Errors
    /// Disco does not support the device, dtype or shape.
    ///
    /// # Safety
    /// `managed` is a valid DLPack tensor that the caller owns. Its memory is initialised, and the producer does not
    /// access it while a view exists. Each import has its own borrow flag: if the same memory is imported twice, or
    /// exported and imported again, one tensor is not written to while another one has a view.
    pub unsafe fn from_dlpack(managed: *mut DLManagedTensor) -> Result<Self> {
        let owner = Import(managed);
        // SAFETY: `managed` is valid by contract until `owner` is dropped.
        let dl = unsafe { &(*managed).dl_tensor };
        // SAFETY: by contract the tensor is valid until the deleter runs, and `owner` runs it on drop.
        unsafe { Self::from_dl_tensor(dl, Box::new(owner)) }
    }

    /// Imports a tensor whose memory `owner` keeps alive, and shares its elements. `owner` is dropped with the last
    /// clone, on any thread, or at once on error.
    ///
    /// # Errors
    /// Disco does not support the device, dtype or shape.
    ///
    /// # Safety
    /// `dl` is a valid DLPack tensor until the call returns, and its elements are valid until `owner` is dropped. The
    /// other conditions are those of [`Tensor::from_dlpack`].
    pub unsafe fn from_dl_tensor(dl: &DLTensor, owner: Box<dyn Any + Send + Sync>) -> Result<Self> {
        let kind = DeviceKind::from_dlpack(dl.device.device_type)
            .ok_or_else(|| Error::invalid(format!("DLPack device type {} is not known", dl.device.device_type)))?;
        let DLDataType { code, bits, lanes } = dl.dtype;
        let dtype = DType::from_dlpack(code, bits, lanes).ok_or_else(|| {
            Error::invalid(format!("DLPack dtype (code {code}, {bits} bits, {lanes} lanes) is not known"))
        })?;
        let axes = usize::try_from(dl.ndim).map_err(|_| Error::invalid("DLPack ndim is negative"))?;
        // SAFETY: in a valid DLPack tensor `shape` points to `ndim` extents.
        let shape = Shape::from(unsafe { list(dl.shape, axes) });
        let (elements, _) = extent(dtype, &shape)?;
        let strides = if dl.strides.is_null() {
            None
        } else {
            // SAFETY: in a valid DLPack tensor non-null `strides` point to `ndim` strides.
            Some(unsafe { list(dl.strides, axes) }).filter(|strides| !row_major(&shape, strides))
        };
        let reach = reach(&shape, strides)?.checked_mul(dtype.size());
        let byte_offset = usize::try_from(dl.byte_offset).ok();
        let bytes = byte_offset.and_then(|offset| reach?.checked_add(offset));
        let (Some(byte_offset), Some(bytes)) = (byte_offset, bytes) else {
            return Err(Error::invalid("DLPack tensor is larger than memory"));
        };
        let strides = strides.map(Arc::from);
        let device = Device::new(kind, dl.device.device_id);
        // SAFETY: by contract the memory is valid up to the last element until `owner` is dropped.
        let storage = unsafe { Storage::from_raw(dl.data.cast(), bytes, device, owner) };
        Ok(Self(Arc::new(Window { storage, dtype, shape, strides, byte_offset, elements })))
    }
}

/// Number of elements from the first to the farthest that the strides reach, both included.
fn reach(shape: &Shape, strides: Option<&[i64]>) -> Result<usize> {
    let too_large = || Error::invalid("DLPack strides leave memory");
    if shape.elements() == Some(0) {
        return Ok(0);
    }
    let Some(strides) = strides else { return shape.elements().ok_or_else(too_large) };
    let mut last = 0usize;
    for (&dim, &stride) in shape.iter().zip(strides) {
        let stride = usize::try_from(stride).map_err(|_| Error::invalid("negative DLPack strides are not known"))?;
        last = (dim as usize - 1).checked_mul(stride).and_then(|n| n.checked_add(last)).ok_or_else(too_large)?;
    }
    Ok(last + 1)
}

/// Whether `strides` are those of a row-major tensor of this shape. Axes of extent 1 may have any stride.
fn row_major(shape: &Shape, strides: &[i64]) -> bool {
    let plain = shape.contiguous_strides();
    shape.elements() == Some(0) || (0..shape.len()).all(|axis| shape[axis] == 1 || strides[axis] == plain[axis])
}

/// # Safety
/// `first` points to `len` integers, or `len` is 0.
unsafe fn list<'a>(first: *const i64, len: usize) -> &'a [i64] {
    match len {
        0 => &[],
        // SAFETY: `first` points to `len` integers by contract.
        _ => unsafe { slice::from_raw_parts(first, len) },
    }
}

unsafe extern "C" fn delete_export(managed: *mut DLManagedTensor) {
    // SAFETY: `to_dlpack` leaked both boxes, and the consumer calls the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.manager_ctx.cast::<Export>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: `to_dlpack_versioned` leaked both boxes, and the consumer calls the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.manager_ctx.cast::<Export>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exported_and_imported_tensor_keeps_its_address() {
        let tensor = Tensor::from_slice(&[1f32, 2., 3., 4., 5., 6.], [2, 3]).unwrap().window(3, [3, 1]).unwrap();
        // SAFETY: `managed` was just exported, and `from_dlpack` takes it over.
        let back = unsafe { Tensor::from_dlpack(tensor.to_dlpack()) }.unwrap();
        assert_eq!(back.data(), tensor.data());
        assert!(back.overlaps(&tensor), "by storages of their own");
        assert_eq!((back.dtype(), back.shape(), back.device()), (DType::F32, tensor.shape(), Device::CPU));
        drop(tensor);
        assert_eq!(back.to_vec::<f32>().unwrap(), [4., 5., 6.], "the consumer keeps the elements alive");
    }

    #[test]
    fn a_versioned_export_says_that_it_may_be_written_and_frees_the_tensor_once() {
        let tensor = Tensor::from_slice(&[1i16, 2, 3], [3]).unwrap();
        let managed = tensor.to_dlpack_versioned();
        // SAFETY: `managed` was just exported.
        let seen = unsafe { &*managed };
        assert_eq!((seen.version, seen.flags), (DLManagedTensorVersioned::VERSION, 0));
        assert_eq!((seen.dl_tensor.data.cast(), seen.dl_tensor.ndim), (tensor.data(), 1));
        assert_eq!(Arc::strong_count(&tensor.0), 2);
        // SAFETY: the deleter of a tensor that was just exported.
        unsafe { delete_versioned(managed) };
        assert_eq!(Arc::strong_count(&tensor.0), 1);
    }

    #[test]
    fn strides_are_kept_and_unknown_types_are_errors() {
        let tensor = Tensor::from_slice(&[1i64, 2, 3, 4, 5, 6], [2, 3]).unwrap();
        let managed = tensor.to_dlpack();
        // SAFETY: `managed` was just exported and is not shared.
        let dl = unsafe { &(*managed).dl_tensor };
        // SAFETY: `shape` points to two integers.
        unsafe { dl.shape.copy_from_nonoverlapping([3, 2].as_ptr(), 2) };
        // SAFETY: `strides` points to two integers.
        unsafe { dl.strides.copy_from_nonoverlapping([1, 3].as_ptr(), 2) };
        // SAFETY: `managed` was just exported, and `from_dlpack` takes it over.
        let transposed = unsafe { Tensor::from_dlpack(managed) }.unwrap();
        assert_eq!(transposed.strides(), [1, 3]);
        assert!(!transposed.is_contiguous());
        assert!(transposed.view::<i64>().unwrap_err().to_string().contains("not contiguous"));
        let flat = Tensor::zeros(DType::I64, [6]).unwrap();
        for (to, from) in [(&tensor, &transposed), (&transposed, &tensor), (&flat, &transposed)] {
            assert!(to.copy_from(from).unwrap_err().to_string().contains("not contiguous"));
        }

        let managed = tensor.to_dlpack();
        // SAFETY: `managed` was just exported and is not shared.
        unsafe { (*managed).dl_tensor.dtype.lanes = 4 };
        // SAFETY: `managed` was just exported, and `from_dlpack` takes it over.
        let unknown = unsafe { Tensor::from_dlpack(managed) };
        assert!(unknown.unwrap_err().to_string().contains("4 lanes"));
        assert_eq!(Arc::strong_count(&tensor.0), 2, "a refused import runs its deleter");
    }
}
