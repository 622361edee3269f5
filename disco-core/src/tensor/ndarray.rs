//! Host tensors as arrays of the crate `ndarray`.

use ndarray::{Array, ArrayViewD, ArrayViewMutD, Dimension, IxDyn};

use super::{Tensor, View, ViewMut};
use crate::dtype::Element;
use crate::error::{Error, Result};

impl Tensor {
    /// A host tensor with the elements of an array. The elements are moved if they lie row-major without gaps, and
    /// copied otherwise.
    ///
    /// # Errors
    /// The size in bytes overflows.
    pub fn from_ndarray<T: Element, D: Dimension>(array: Array<T, D>) -> Result<Self> {
        let shape = array.shape().to_vec();
        let is_whole = array.is_standard_layout();
        let array = if is_whole { array } else { array.as_standard_layout().into_owned() };
        let len = array.len();
        match array.into_raw_vec_and_offset() {
            (mut elements, None | Some(0)) => {
                elements.truncate(len);
                Self::from_vec(elements, shape)
            }
            // The array is a part of a larger allocation.
            (elements, Some(offset)) => Self::from_slice(&elements[offset..offset + len], shape),
        }
    }
}

impl<T: Element> View<'_, T> {
    /// The elements as an array of the tensor's shape. A view of bytes ([`Tensor::bytes`]) gives an array with one
    /// axis, unless elements are single bytes.
    ///
    /// # Errors
    /// The tensor has more axes or elements than an array can have.
    pub fn as_ndarray(&self) -> Result<ArrayViewD<'_, T>> {
        ArrayViewD::from_shape(axes(self.tensor, self.len()), self).map_err(refused)
    }
}

impl<T: Element> ViewMut<'_, T> {
    /// As [`View::as_ndarray`], mutably.
    ///
    /// # Errors
    /// As [`View::as_ndarray`].
    pub fn as_ndarray_mut(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        let axes = axes(self.tensor, self.len());
        ArrayViewMutD::from_shape(axes, self).map_err(refused)
    }
}

fn axes(tensor: &Tensor, len: usize) -> IxDyn {
    if tensor.elements() == len { IxDyn(&tensor.dims()) } else { IxDyn(&[len]) }
}

fn refused(error: ndarray::ShapeError) -> Error {
    Error::invalid(format!("not an array of ndarray: {error}"))
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array, s};

    use super::*;

    #[test]
    fn a_row_major_array_becomes_a_tensor_without_a_copy() {
        let array = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
        let address = array.as_ptr().addr();
        let tensor = Tensor::from_ndarray(array).unwrap();
        assert_eq!((tensor.data().addr(), tensor.dims()), (address, vec![2, 3]));
        tensor.view_mut::<f32>().unwrap().as_ndarray_mut().unwrap()[[1, 0]] = 9.0;
        let view = tensor.view::<f32>().unwrap();
        assert_eq!(view.as_ndarray().unwrap(), array![[1.0, 2.0, 3.0], [9.0, 5.0, 6.0]].into_dyn());
        assert_eq!(tensor.bytes().unwrap().as_ndarray().unwrap().shape(), [24]);
    }

    #[test]
    fn parts_and_transposed_arrays_are_copied_in_row_major_order() {
        let whole = Array2::from_shape_fn((4, 3), |(row, column)| (10 * row + column) as i64);
        let transposed = Tensor::from_ndarray(whole.clone().reversed_axes()).unwrap();
        assert_eq!(
            (transposed.dims(), transposed.index(1).unwrap().to_vec::<i64>().unwrap()),
            (vec![3, 4], vec![1, 11, 21, 31])
        );
        let part = Tensor::from_ndarray(whole.clone().slice_move(s![1..3, ..])).unwrap();
        assert_eq!(part.to_vec::<i64>().unwrap(), [10, 11, 12, 20, 21, 22]);
        let reversed = Tensor::from_ndarray(whole.slice_move(s![..;-1, ..])).unwrap();
        assert_eq!(reversed.index(0).unwrap().to_vec::<i64>().unwrap(), [30, 31, 32]);
    }
}
