//! Tensors that share the elements of another tensor: ranges, positions and other shapes.

use std::ops::{Bound, RangeBounds};

use super::Tensor;
use crate::error::{Error, Result};
use crate::shape::Shape;

impl Tensor {
    /// A range of the first axis, which shares the elements. For a tensor of shape `[8, 3]`, `slice(2..5)` has shape
    /// `[3, 3]`.
    ///
    /// # Errors
    /// The range exceeds the first axis or ends before it starts, the tensor has no axis, or it is not contiguous.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (extent, row) = self.first_axis("slice")?;
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => extent,
        };
        if start > end || end > extent {
            return Err(Error::invalid(format!("slice {start}..{end} leaves the first axis of {self}")));
        }
        let mut dims = self.dims();
        dims[0] = end - start;
        self.window(start * row, dims)
    }

    /// One position of the first axis, which shares the elements. For a tensor of shape `[8, 3]`, `index(2)` has shape
    /// `[3]`.
    ///
    /// # Errors
    /// `position` exceeds the first axis, the tensor has no axis, or it is not contiguous.
    pub fn index(&self, position: usize) -> Result<Self> {
        let (extent, row) = self.first_axis("index")?;
        if position >= extent {
            return Err(Error::invalid(format!("index {position} leaves the first axis of {self}")));
        }
        self.window(position * row, &self.dims()[1..])
    }

    /// The same elements in another shape with the same number of elements.
    ///
    /// # Errors
    /// `shape` has a different number of elements, or the tensor is not contiguous.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() == Some(self.elements()) {
            self.window(0, shape)
        } else {
            Err(Error::invalid(format!("reshape: {self} does not have as many elements as {shape}")))
        }
    }

    /// The extent of the first axis, and the number of elements of one position.
    fn first_axis(&self, action: &str) -> Result<(usize, usize)> {
        let dims = self.dims();
        match dims.split_first() {
            // The product wraps only if another extent is 0, and then the tensor has no elements.
            Some((extent, rest)) => {
                Ok((*extent, rest.iter().fold(1, |product: usize, dim| product.wrapping_mul(*dim))))
            }
            None => Err(Error::invalid(format!("{action}: {self} has no axis"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn tensor() -> Tensor {
        Tensor::from_vec((0..12).collect::<Vec<i32>>(), [4, 3]).unwrap()
    }

    fn elements(tensor: Tensor) -> (Vec<usize>, Vec<i32>) {
        (tensor.dims(), tensor.to_vec().unwrap())
    }

    #[test]
    fn ranges_of_the_first_axis_share_the_elements() {
        let tensor = tensor();
        assert_eq!(elements(tensor.slice(1..2).unwrap()), (vec![1, 3], vec![3, 4, 5]));
        assert_eq!(elements(tensor.slice(2..).unwrap()), (vec![2, 3], (6..12).collect()));
        assert_eq!(elements(tensor.slice(..=0).unwrap()), (vec![1, 3], vec![0, 1, 2]));
        assert_eq!(elements(tensor.slice(4..).unwrap()), (vec![0, 3], vec![]));
        assert_eq!(tensor.slice(..).unwrap().shape(), tensor.shape());
        tensor.slice(3..).unwrap().slice(..).unwrap().write(&[-1i32, -2, -3]).unwrap();
        assert_eq!(elements(tensor.index(3).unwrap()), (vec![3], vec![-1, -2, -3]));
        assert_eq!(elements(tensor.index(1).unwrap().index(2).unwrap()), (vec![], vec![5]));
    }

    #[test]
    fn ranges_that_leave_the_first_axis_are_errors() {
        let error = |result: Result<Tensor>| result.unwrap_err().to_string();
        let tensor = tensor();
        assert_eq!(error(tensor.slice(3..5)), "slice 3..5 leaves the first axis of tensor i32[4, 3] on cpu");
        #[allow(clippy::reversed_empty_ranges, reason = "the error is what is tested")]
        let reversed = tensor.slice(3..2);
        assert_eq!(error(reversed), "slice 3..2 leaves the first axis of tensor i32[4, 3] on cpu");
        assert!(tensor.slice(..=usize::MAX).is_err());
        assert_eq!(error(tensor.index(4)), "index 4 leaves the first axis of tensor i32[4, 3] on cpu");
        let scalar = Tensor::zeros(DType::F32, Shape::scalar()).unwrap();
        assert_eq!(error(scalar.slice(..)), "slice: tensor f32[] on cpu has no axis");
    }

    #[test]
    fn reshape_requires_the_same_number_of_elements() {
        let tensor = tensor();
        assert_eq!(elements(tensor.reshape([2, 6]).unwrap()), (vec![2, 6], (0..12).collect()));
        assert_eq!(elements(tensor.slice(1..).unwrap().reshape(9).unwrap()), (vec![9], (3..12).collect()));
        let error = tensor.reshape([5, 2]).unwrap_err().to_string();
        assert_eq!(error, "reshape: tensor i32[4, 3] on cpu does not have as many elements as [5, 2]");
    }
}
