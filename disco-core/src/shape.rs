//! Extents of a tensor.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A list of extents, outermost first. Cheap to clone.
///
/// As an argument a shape may contain any integers. The extents of a tensor are not negative, and their product fits
/// `usize`. Arrays, slices and vectors of `usize`, `i64`, `u64`, `i32` and `u32` convert to shapes; an integer converts
/// to a shape with one axis, and `()` to the shape of a scalar, which has no axes and one element. An extent above [`i64::MAX`] becomes -1, which tensors refuse.
///
/// ```
/// use disco_core::{DType, Shape, Tensor};
///
/// let rows = vec![1.0f32; 12].len() / 4;
/// let tensor = Tensor::zeros(DType::F32, [rows, 4])?;
/// assert_eq!(tensor.shape(), &Shape::from([3, 4]));
/// assert_eq!(tensor.dims(), [3, 4]);
/// let loss = Tensor::from_slice(&[0.25f32], ())?;
/// assert_eq!((loss.dims().len(), loss.elements()), (0, 1));
/// # Ok::<(), disco_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Arc<[i64]>);

impl Shape {
    /// The shape without axes: that of a tensor with one element.
    pub fn scalar() -> Self {
        Self(Arc::new([]))
    }

    /// Number of elements, if no extent is negative and the product fits.
    pub fn elements(&self) -> Option<usize> {
        self.0.iter().try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))
    }

    /// Strides, in elements, of a row-major tensor of this shape.
    pub fn contiguous_strides(&self) -> Vec<i64> {
        let mut strides = vec![1i64; self.len()];
        for axis in (1..self.len()).rev() {
            strides[axis - 1] = strides[axis].wrapping_mul(self[axis].max(1));
        }
        strides
    }
}

impl Deref for Shape {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.0
    }
}

macro_rules! from_integers {
    ($($int:ty),*) => {
        $(impl From<&[$int]> for Shape {
            fn from(dims: &[$int]) -> Self {
                Self(dims.iter().map(|dim| i64::try_from(*dim).unwrap_or(-1)).collect())
            }
        }

        impl From<Vec<$int>> for Shape {
            fn from(dims: Vec<$int>) -> Self {
                dims[..].into()
            }
        }

        impl<const N: usize> From<[$int; N]> for Shape {
            fn from(dims: [$int; N]) -> Self {
                Self(Arc::new(dims.map(|dim| i64::try_from(dim).unwrap_or(-1))))
            }
        }

        impl<const N: usize> From<&[$int; N]> for Shape {
            fn from(dims: &[$int; N]) -> Self {
                (*dims).into()
            }
        }

        impl From<$int> for Shape {
            fn from(dim: $int) -> Self {
                [dim].into()
            }
        })*
    };
}

/// The shape of a scalar.
impl From<()> for Shape {
    fn from((): ()) -> Self {
        Self::scalar()
    }
}

// `i32` is among the types because it is the type of an array of plain literals.
from_integers!(i32, u32, i64, u64, usize);

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, dim) in self.0.iter().enumerate() {
            let comma = if axis > 0 { ", " } else { "" };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_and_overflowing_extents_have_no_element_count() {
        assert_eq!(Shape::from([2, 3, 4]).elements(), Some(24));
        assert_eq!(Shape::scalar().elements(), Some(1));
        assert_eq!(Shape::from([5, 0]).elements(), Some(0));
        assert_eq!(Shape::from([-1, 2]).elements(), None);
        assert_eq!(Shape::from([i64::MAX, i64::MAX]).elements(), None);
    }

    #[test]
    fn integers_of_every_type_convert_to_the_same_shape() {
        let (rows, columns) = (2usize, 3usize);
        let shape = Shape::from([2, 3]);
        assert_eq!([rows, columns].map(|dim| dim as i64), shape[..]);
        let made: [Shape; 8] = [
            [rows, columns].into(),
            [2u64, 3].into(),
            [2i64, 3].into(),
            [2u32, 3].into(),
            vec![rows, columns].into(),
            [rows, columns][..].into(),
            (&[rows, columns]).into(),
            vec![2u64, 3].into(),
        ];
        assert!(made.iter().all(|made| *made == shape), "{made:?}");
        assert_eq!(Shape::from(()), Shape::scalar());
        assert_eq!((Shape::from(rows), Shape::from(7)), (Shape::from([2]), Shape::from([7usize])));
        assert_eq!(Shape::from([u64::MAX, 0]).elements(), None);
    }

    #[test]
    fn row_major_strides_count_elements() {
        assert_eq!(Shape::from([2, 3, 4]).contiguous_strides(), [12, 4, 1]);
        assert_eq!(Shape::scalar().contiguous_strides(), [0i64; 0]);
    }
}
