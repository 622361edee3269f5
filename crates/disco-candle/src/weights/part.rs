//! The part of a tensor that one rank has.

use std::fmt;
use std::ops::Range;

/// The part of a tensor that one rank has.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of the tensor.
    Whole,
    /// One range along a dimension.
    Range {
        /// The dimension, 0 is the outermost.
        dim: usize,
        /// Elements along the dimension.
        range: Range<usize>,
    },
    /// Several ranges along a dimension, one after the other: parts of tensors that are stacked in one.
    Ranges {
        /// The dimension, 0 is the outermost.
        dim: usize,
        /// Elements along the dimension, in the order in which they are concatenated.
        ranges: Vec<Range<usize>>,
    },
}

impl Part {
    /// The dimension and the ranges along it; `None` for the whole tensor.
    pub(super) fn ranges(&self) -> Option<(usize, &[Range<usize>])> {
        match self {
            Self::Whole => None,
            Self::Range { dim, range } => Some((*dim, std::slice::from_ref(range))),
            Self::Ranges { dim, ranges } => Some((*dim, ranges)),
        }
    }

    /// Shape of this part of a tensor of `shape`, which has the part.
    pub(super) fn shape(&self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        if let Some((dim, ranges)) = self.ranges() {
            shape[dim] = ranges.iter().map(Range::len).sum();
        }
        shape
    }

    /// The reason why a tensor of `shape` does not have this part.
    pub(super) fn problem(&self, shape: &[usize]) -> Option<String> {
        let (dim, ranges) = self.ranges()?;
        let Some(&len) = shape.get(dim) else {
            return Some(format!("the tensor has {} dimensions", shape.len()));
        };
        let bad = ranges.iter().find(|range| range.start > range.end || range.end > len);
        if let Some(Range { start, end }) = bad {
            return Some(format!("the range {start}..{end} is not inside of 0..{len}"));
        }
        let total = ranges.iter().try_fold(0usize, |sum, range| sum.checked_add(range.len()));
        let others = shape.iter().enumerate().filter(|(other, dim_len)| *other != dim && **dim_len > 0);
        let elements = others.map(|(_, dim_len)| *dim_len).try_fold(total.unwrap_or(usize::MAX), usize::checked_mul);
        // 8 bytes for an element are the most.
        let fits = total.is_some() && elements.is_some_and(|count| count <= isize::MAX as usize / 8);
        (!fits).then(|| "its ranges have more elements than memory can hold".to_owned())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((dim, ranges)) = self.ranges() else {
            return f.write_str("whole");
        };
        write!(f, "[dim {dim}: ")?;
        for (position, Range { start, end }) in ranges.iter().enumerate() {
            write!(f, "{}{start}..{end}", if position == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}
