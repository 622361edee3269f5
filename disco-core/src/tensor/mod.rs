//! Tensors: typed windows with a shape on shared storage, with DLPack's fields.
//!
//! ```text
//! Tensor ── Arc ─▶ Storage { pointer, bytes, device, borrow flag, owner }
//!   dtype, shape, strides, byte_offset                    └ dropped last, on any thread
//! ```
//!
//! Clones share the storage. [`View`] and [`ViewMut`] give access to host elements. They hold the storage's borrow
//! flag, which works like that of `RefCell` but across threads. A collective holds the flag of the tensors that it
//! reads and writes, so safe code can't race with a peer. Device memory has no views: a
//! [`Queue`](crate::device_api::Queue) copies it.

mod dlpack;
mod lend;
#[cfg(feature = "ndarray")]
mod ndarray;
mod slice;
mod storage;
mod view;

use std::sync::Arc;

pub use dlpack::{DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor};
pub use storage::{Access, Storage};
pub use view::{View, ViewMut};

use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::Shape;

/// A window on shared storage. Cloning is cheap and shares the elements.
///
/// ```
/// use disco_core::Tensor;
///
/// let tensor = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2])?;
/// let last_rows = tensor.slice(1..)?;
/// assert_eq!((last_rows.dims(), last_rows.to_vec::<f32>()?), (vec![2, 2], vec![3.0, 4.0, 5.0, 6.0]));
/// // A slice shares the elements.
/// last_rows.view_mut::<f32>()?.fill(0.0);
/// assert_eq!(tensor.reshape(6)?.view::<f32>()?[..3], [1.0, 2.0, 0.0]);
/// # Ok::<(), disco_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor(Arc<Window>);

/// The fields of a [`Tensor`], behind one pointer so that arguments and operations that own tensors stay small.
struct Window {
    storage: Arc<Storage>,
    dtype: DType,
    shape: Shape,
    /// Strides in elements; `None` means row-major without gaps.
    strides: Option<Arc<[i64]>>,
    byte_offset: usize,
    /// Number of elements, cached because it is read often.
    elements: usize,
}

impl Tensor {
    /// A zeroed host tensor, aligned to 64 bytes.
    ///
    /// # Errors
    /// An extent is negative, or the bytes can't be allocated.
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Result<Self> {
        Self::in_new_storage(dtype, shape, Storage::host)
    }

    /// A tensor over a storage that `alloc` makes. `alloc` gets the number of bytes that dtype and shape need.
    ///
    /// # Errors
    /// An extent is negative, the size in bytes overflows, or `alloc` fails.
    pub fn in_new_storage(
        dtype: DType,
        shape: impl Into<Shape>,
        alloc: impl FnOnce(usize) -> Result<Arc<Storage>>,
    ) -> Result<Self> {
        let shape = shape.into();
        let (_, bytes) = extent(dtype, &shape)?;
        Self::from_storage(alloc(bytes)?, dtype, shape)
    }

    /// A host tensor with a copy of `elements`.
    ///
    /// # Errors
    /// The length of `elements` does not fit `shape`.
    pub fn from_slice<T: Element>(elements: &[T], shape: impl Into<Shape>) -> Result<Self> {
        let tensor = Self::zeros(T::DTYPE, shape)?;
        tensor.write(elements)?;
        Ok(tensor)
    }

    /// A row-major tensor at the start of `storage`.
    ///
    /// # Errors
    /// The storage holds fewer bytes than dtype and shape need.
    pub fn from_storage(storage: Arc<Storage>, dtype: DType, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let (elements, bytes) = extent(dtype, &shape)?;
        if bytes > storage.byte_len() {
            return Err(Error::invalid(format!(
                "{dtype}{shape} needs {bytes} bytes, storage has {}",
                storage.byte_len()
            )));
        }
        Ok(Self(Arc::new(Window { storage, dtype, shape, strides: None, byte_offset: 0, elements })))
    }

    /// A tensor of shape `shape` on the same storage that starts at element `offset` of this tensor.
    ///
    /// # Errors
    /// The window exceeds this tensor, or this tensor is not contiguous.
    pub fn window(&self, offset: usize, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        self.require_contiguous("window")?;
        let elements = shape.elements().filter(|n| n.checked_add(offset).is_some_and(|end| end <= self.elements()));
        let Some(elements) = elements else {
            return Err(Error::invalid(format!("window {shape} at element {offset} leaves {self}")));
        };
        let byte_offset = self.0.byte_offset + offset * self.0.dtype.size();
        Ok(Self(Arc::new(Window {
            storage: self.0.storage.clone(),
            shape,
            strides: None,
            byte_offset,
            dtype: self.dtype(),
            elements,
        })))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Extents as `usize`.
    pub fn dims(&self) -> Vec<usize> {
        // Extents of a tensor are never negative.
        self.0.shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect()
    }

    /// Strides in elements.
    pub fn strides(&self) -> Vec<i64> {
        self.0.strides.as_ref().map_or_else(|| self.0.shape.contiguous_strides(), |strides| strides.to_vec())
    }

    /// The device of the elements.
    pub fn device(&self) -> Device {
        self.0.storage.device()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.0.elements
    }

    /// Size of the elements in bytes.
    pub fn byte_len(&self) -> usize {
        self.elements() * self.0.dtype.size()
    }

    /// The storage, shared with all clones and windows.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.0.storage
    }

    /// Address of the first element, in the address space of [`Tensor::device`].
    pub fn data(&self) -> *mut u8 {
        self.0.storage.pointer().wrapping_add(self.0.byte_offset)
    }

    /// Byte range of the elements inside their storage.
    pub fn byte_range(&self) -> std::ops::Range<usize> {
        self.0.byte_offset..self.0.byte_offset + self.byte_len()
    }

    /// Whether the byte ranges of two tensors overlap, even if their storages differ.
    pub fn overlaps(&self, other: &Tensor) -> bool {
        let stretch = |tensor: &Tensor| (tensor.data().addr(), tensor.data().addr() + tensor.byte_len());
        let ((a, a_end), (b, b_end)) = (stretch(self), stretch(other));
        self.device() == other.device() && a.max(b) < a_end.min(b_end)
    }

    /// Whether the elements lie row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.0.strides.is_none()
    }

    /// The elements of a contiguous host tensor, for reading in place.
    ///
    /// # Errors
    /// The dtype is not that of `T`, the tensor is not a contiguous host tensor, or a writing view of the storage
    /// exists ([`Error::Busy`]).
    pub fn view<T: Element>(&self) -> Result<View<'_, T>> {
        self.require_viewable::<T>()?;
        View::new(self)
    }

    /// The elements of a contiguous host tensor, for reading and writing in place.
    ///
    /// # Errors
    /// As [`Tensor::view`], and [`Error::Busy`] also while a reading view exists.
    pub fn view_mut<T: Element>(&self) -> Result<ViewMut<'_, T>> {
        self.require_viewable::<T>()?;
        ViewMut::new(self)
    }

    /// A copy of the elements of a contiguous host tensor.
    ///
    /// # Errors
    /// As [`Tensor::view`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.view::<T>()?.to_vec())
    }

    /// Overwrites all elements of a contiguous host tensor.
    ///
    /// # Errors
    /// As [`Tensor::view_mut`], or the length of `elements` differs from that of the tensor.
    pub fn write<T: Element>(&self, elements: &[T]) -> Result<()> {
        if elements.len() != self.elements() {
            return Err(Error::invalid(format!("{} elements do not fill {self}", elements.len())));
        }
        self.view_mut::<T>()?.copy_from_slice(elements);
        Ok(())
    }

    /// Copies the elements of `source`, which has the same dtype and number of elements, into this contiguous host
    /// tensor. Both may be windows of one storage.
    ///
    /// # Errors
    /// The tensors differ in dtype or number of elements, overlap in part, one is not a contiguous host tensor, or one is
    /// in use.
    pub fn copy_from(&self, source: &Tensor) -> Result<()> {
        if (source.0.dtype, source.elements()) != (self.0.dtype, self.elements()) {
            return Err(Error::invalid(format!("can't copy {source} into {self}")));
        }
        [self, source].into_iter().try_for_each(Tensor::require_host)?;
        if self.needs_copy_of(source)? { self.bytes_mut()?.copy_from(source) } else { Ok(()) }
    }

    /// Whether a copy of `source`, which has the same size in bytes, changes this tensor: not if both are the same
    /// elements.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the tensors overlap in part.
    pub fn needs_copy_of(&self, source: &Tensor) -> Result<bool> {
        match self.data() != source.data() {
            true if self.overlaps(source) => {
                Err(Error::invalid(format!("can't copy {source} into {self}, which overlap")))
            }
            needs_copy => Ok(needs_copy),
        }
    }

    /// The bytes of a contiguous host tensor.
    ///
    /// # Errors
    /// As [`Tensor::view`], but any dtype is accepted.
    pub fn bytes(&self) -> Result<View<'_, u8>> {
        self.require_host()?;
        View::new(self)
    }

    /// The bytes of a contiguous host tensor, for reading and writing.
    ///
    /// # Errors
    /// As [`Tensor::view_mut`], but any dtype is accepted.
    pub fn bytes_mut(&self) -> Result<ViewMut<'_, u8>> {
        self.require_host()?;
        ViewMut::new(self)
    }

    fn require_viewable<T: Element>(&self) -> Result<()> {
        if !T::views(self.0.dtype) {
            return Err(Error::invalid(format!("{self} can't be viewed as {}", T::DTYPE)));
        }
        self.require_host()
    }

    fn require_host(&self) -> Result<()> {
        if !self.device().is_host() {
            return Err(Error::invalid(format!("{self} is not in host memory")));
        }
        self.require_contiguous("view")
    }

    fn require_contiguous(&self, action: &str) -> Result<()> {
        match self.0.strides {
            None => Ok(()),
            Some(_) => Err(Error::invalid(format!("{action}: {self} is not contiguous"))),
        }
    }
}

/// The number of elements and the size in bytes of a tensor, if the extents are valid.
fn extent(dtype: DType, shape: &Shape) -> Result<(usize, usize)> {
    let extent = shape.elements().and_then(|n| Some((n, n.checked_mul(dtype.size())?)));
    extent
        .filter(|&(_, bytes)| isize::try_from(bytes).is_ok())
        .ok_or_else(|| Error::invalid(format!("{dtype}{shape} is no shape that memory could hold")))
}

crate::format_as!(Display for Tensor, |it| "tensor {}{} on {}", it.0.dtype, it.0.shape, it.device());

crate::format_as!(Debug for Tensor, |it| "<{it} at {:p}>", it.data());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_and_windows_share_elements() {
        let tensor = Tensor::from_slice(&[0f32, 1., 2., 3., 4., 5.], [2, 3]).unwrap();
        let row = tensor.window(3, [3]).unwrap();
        row.write(&[7f32, 8., 9.]).unwrap();
        assert_eq!(tensor.clone().to_vec::<f32>().unwrap(), [0., 1., 2., 7., 8., 9.]);
        assert!(tensor.window(4, [3]).unwrap_err().to_string().contains("leaves tensor f32[2, 3]"));
    }

    #[test]
    fn a_writer_excludes_readers_and_writers() {
        let tensor = Tensor::zeros(DType::I32, [4]).unwrap();
        let other = tensor.clone();
        let reading = tensor.view::<i32>().unwrap();
        assert!(other.view::<i32>().is_ok(), "readers share");
        assert!(matches!(other.view_mut::<i32>(), Err(Error::Busy(_))));
        drop(reading);
        let writing = tensor.view_mut::<i32>().unwrap();
        assert!(matches!(other.view::<i32>(), Err(Error::Busy(_))));
        drop(writing);
        assert!(other.view_mut::<i32>().is_ok());
    }

    #[test]
    fn a_view_of_another_dtype_is_an_error() {
        let tensor = Tensor::zeros(DType::F8E4M3, [4]).unwrap();
        assert!(tensor.view::<u8>().is_ok(), "bytes view the types without a Rust type");
        assert!(tensor.view::<i8>().is_err());
        assert!(Tensor::zeros(DType::F32, [4]).unwrap().view::<f64>().is_err());
    }

    #[test]
    fn invalid_shapes_are_errors() {
        assert!(Tensor::zeros(DType::F64, [-1]).is_err());
        assert!(Tensor::zeros(DType::F64, [1i64 << 60, 16]).is_err());
        assert!(Tensor::zeros(DType::U8, [1i64 << 62]).is_err(), "refused by the allocator, not a crash");
        assert_eq!(Tensor::zeros(DType::F64, [0]).unwrap().to_vec::<f64>().unwrap(), [0f64; 0]);
    }

    #[test]
    fn copies_require_the_same_dtype_and_length() {
        let from = Tensor::from_slice(&[1u16, 2], [2]).unwrap();
        let into = Tensor::zeros(DType::U16, [2]).unwrap();
        into.copy_from(&from).unwrap();
        assert_eq!(into.to_vec::<u16>().unwrap(), [1, 2]);
        let wrong = Tensor::zeros(DType::U16, [3]).unwrap().copy_from(&from).unwrap_err();
        assert_eq!(wrong.to_string(), "can't copy tensor u16[2] on cpu into tensor u16[3] on cpu");
    }
}
