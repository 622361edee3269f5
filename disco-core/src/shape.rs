//! Extents of a tensor.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A list of extents, outermost first. Cheap to clone.
///
/// As an argument it may hold any integers; a tensor's shape has none below zero and its element count fits `usize`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Arc<[i64]>);

impl Shape {
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

impl From<&[i64]> for Shape {
    fn from(dims: &[i64]) -> Self {
        Self(dims.into())
    }
}

impl From<Vec<i64>> for Shape {
    fn from(dims: Vec<i64>) -> Self {
        Self(dims.into())
    }
}

impl<const N: usize> From<[i64; N]> for Shape {
    fn from(dims: [i64; N]) -> Self {
        Self(Arc::new(dims))
    }
}

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
    fn elements_refuse_negative_and_overflowing_extents() {
        assert_eq!(Shape::from([2, 3, 4]).elements(), Some(24));
        assert_eq!(Shape::from([]).elements(), Some(1));
        assert_eq!(Shape::from([5, 0]).elements(), Some(0));
        assert_eq!(Shape::from([-1, 2]).elements(), None);
        assert_eq!(Shape::from([i64::MAX, i64::MAX]).elements(), None);
    }

    #[test]
    fn row_major_strides_count_elements() {
        assert_eq!(Shape::from([2, 3, 4]).contiguous_strides(), [12, 4, 1]);
        assert_eq!(Shape::from([]).contiguous_strides(), [0i64; 0]);
    }
}
