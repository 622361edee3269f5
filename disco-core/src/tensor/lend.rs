//! Memory of the program that is lent to a tensor, and returned.

use std::sync::Arc;

use super::{Storage, Tensor, Window};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::Shape;

impl Tensor {
    /// A host tensor that owns `elements`, without a copy; [`Tensor::into_vec`] returns the vector. The tensor has the
    /// alignment of the vector, which is at least that of one element; [`Tensor::zeros`] aligns to 64 bytes.
    ///
    /// # Errors
    /// The length of `elements` does not fit `shape`.
    pub fn from_vec<T: Element>(elements: Vec<T>, shape: impl Into<Shape>) -> Result<Self> {
        let shape = filled(T::DTYPE, elements.len(), shape)?;
        Self::from_storage(Storage::of_vec(elements), T::DTYPE, shape)
    }

    /// A host tensor of the memory that `elements` borrows from `owner`, without a copy; [`Tensor::into_owner`] returns
    /// the owner. Use it for memory that is not a vector: a matrix of another library, a pool's buffer, a memory map.
    ///
    /// ```
    /// use disco_core::Tensor;
    ///
    /// struct Image {
    ///     name: &'static str,
    ///     pixels: Box<[f32]>,
    /// }
    ///
    /// let image = Image { name: "black", pixels: vec![0.0; 6].into() };
    /// let tensor = Tensor::from_owner(image, |image| &mut image.pixels, [2, 3])?;
    /// tensor.view_mut::<f32>()?[0] = 1.0;
    /// let image: Image = tensor.into_owner().map_err(|tensor| format!("{tensor} is in use"))?;
    /// assert_eq!((image.name, image.pixels[0]), ("black", 1.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The number of elements does not fit `shape`; `owner` is dropped.
    pub fn from_owner<O: Send + 'static, T: Element>(
        owner: O,
        elements: impl FnOnce(&mut O) -> &mut [T],
        shape: impl Into<Shape>,
    ) -> Result<Self> {
        let storage = Storage::of_owner(owner, elements);
        let shape = filled(T::DTYPE, storage.byte_len() / size_of::<T>(), shape)?;
        Self::from_storage(storage, T::DTYPE, shape)
    }

    /// Returns the vector that [`Tensor::from_vec`] got, with the present elements and without a copy.
    ///
    /// ```
    /// use disco_core::{CommunicatorExt, Reduction, Result, Tensor, WorkerContext};
    ///
    /// /// The sum of `gradients` over all workers, in the same memory.
    /// fn sum(ctx: &mut WorkerContext, gradients: Vec<f32>) -> Result<Vec<f32>> {
    ///     let len = gradients.len();
    ///     let lent = Tensor::from_vec(gradients, len)?;
    ///     let result = ctx.comm()?.all_reduce_in_place(&lent, Reduction::Sum);
    ///     // The vector comes back also if the collective failed. Its elements are then unspecified.
    ///     let gradients = lent.into_vec().or_else(|still_used| still_used.to_vec())?;
    ///     result.map(|()| gradients)
    /// }
    /// ```
    ///
    /// # Errors
    /// The tensor, as for [`Tensor::into_owner`].
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>, Self> {
        self.into_owner()
    }

    /// Returns the owner that [`Tensor::from_owner`] or [`Tensor::from_vec`] got. A slice or a clone of the tensor
    /// returns the owner, too, if it is the last tensor of the memory.
    ///
    /// # Errors
    /// The tensor, if another tensor, a view or an operation still uses the memory, or if the owner has another type.
    /// A library that can't cancel an aborted operation, as MPI, keeps the memory for ever.
    pub fn into_owner<O: Send + 'static>(self) -> Result<O, Self> {
        let window = Arc::try_unwrap(self.0).map_err(Self)?;
        let Window { storage, dtype, shape, strides, byte_offset, elements } = window;
        storage
            .into_owner()
            .map_err(|storage| Self(Window { storage, dtype, shape, strides, byte_offset, elements }.into()))
    }
}

/// `shape`, if `len` elements fill it.
fn filled(dtype: DType, len: usize, shape: impl Into<Shape>) -> Result<Shape> {
    let shape = shape.into();
    if shape.elements() != Some(len) {
        return Err(Error::invalid(format!("{len} elements do not fill {dtype}{shape}")));
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_tensor_from_a_vector_keeps_its_memory_and_frees_it_once() {
        let elements = vec![1u32, 2, 3, 4, 5, 6];
        let address = elements.as_ptr().addr();
        let tensor = Tensor::from_vec(elements, [2, 3]).unwrap();
        assert_eq!((tensor.data().addr(), tensor.dtype(), tensor.dims()), (address, DType::U32, vec![2, 3]));
        tensor.view_mut::<u32>().unwrap()[5] = 7;
        let window = tensor.window(3, [3]).unwrap();
        drop(tensor);
        assert_eq!(window.to_vec::<u32>().unwrap(), [4, 5, 7]);
        assert_eq!(Tensor::from_vec(Vec::<f64>::new(), [0, 4]).unwrap().to_vec::<f64>().unwrap(), [0.0; 0]);
        let error = Tensor::from_vec(vec![1u8, 2], [3]).unwrap_err().to_string();
        assert_eq!(error, "2 elements do not fill u8[3]");
    }

    #[test]
    fn a_lent_vector_comes_back_with_its_address_and_the_new_elements() {
        let elements = vec![1.0f32, 2.0, 3.0];
        let address = elements.as_ptr().addr();
        let tensor = Tensor::from_vec(elements, [3]).unwrap();
        tensor.view_mut::<f32>().unwrap()[2] = 9.0;
        let elements: Vec<f32> = tensor.into_vec().unwrap();
        assert_eq!((elements.as_ptr().addr(), elements), (address, vec![1.0, 2.0, 9.0]));
    }

    #[test]
    fn a_vector_in_use_stays_in_the_tensor_until_its_last_user_is_gone() {
        let tensor = Tensor::from_vec(vec![1u8, 2, 3, 4], [4]).unwrap();
        let clone = tensor.clone();
        let tensor = tensor.into_vec::<u8>().unwrap_err();
        drop(clone);
        let access = tensor.storage().read().unwrap();
        let tensor = tensor.into_vec::<u8>().unwrap_err();
        drop(access);
        let half = tensor.slice(2..).unwrap();
        let tensor = tensor.into_vec::<u8>().unwrap_err();
        drop(tensor);
        assert_eq!(half.into_vec::<u8>().unwrap(), [1, 2, 3, 4], "the last window returns the whole vector");
    }

    #[test]
    fn an_owner_of_another_type_is_not_returned() {
        let tensor = Tensor::from_vec(vec![1u8, 2], [2]).unwrap();
        let tensor = tensor.into_vec::<i8>().unwrap_err();
        let tensor = tensor.into_owner::<String>().unwrap_err();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), [1, 2]);
        assert!(Tensor::zeros(DType::U8, [2]).unwrap().into_vec::<u8>().is_err(), "no vector was lent");
    }

    /// Counts its drops. The elements are inside the value, so its address must not change while they are lent.
    struct Inline([u64; 4], Arc<AtomicUsize>);

    impl Drop for Inline {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_owner_with_its_elements_inside_is_dropped_once() {
        let drops = Arc::new(AtomicUsize::new(0));
        let lend = |shape: i64| Tensor::from_owner(Inline([1, 2, 3, 4], drops.clone()), |x| &mut x.0, [shape]);
        let count = || drops.load(Ordering::Relaxed);

        let tensor = lend(4).unwrap();
        tensor.view_mut::<u64>().unwrap()[1] = 7;
        let owner: Inline = std::thread::spawn(|| tensor.into_owner().unwrap()).join().unwrap();
        assert_eq!((owner.0, count()), ([1, 7, 3, 4], 0));
        drop(owner);
        assert_eq!(count(), 1);

        drop(lend(4).unwrap());
        assert_eq!(count(), 2);
        assert_eq!(lend(5).unwrap_err().to_string(), "4 elements do not fill u64[5]");
        assert_eq!(count(), 3);
    }
}
