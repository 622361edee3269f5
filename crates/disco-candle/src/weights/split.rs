//! Ways to split one tensor over ranks.

use std::ops::Range;

use crate::weights::Part;

/// How one tensor is split over the ranks.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank has the whole tensor.
    Whole,
    /// Every rank has the same number of units along a dimension; the first ranks have one more of an uneven remainder.
    Even {
        /// The dimension, 0 is the outermost.
        dim: usize,
        /// Elements that stay together: a head, a quantisation block, or 1.
        unit: usize,
    },
    /// The range of each rank. Ranges may overlap, and may leave elements out.
    Ranges {
        /// The dimension, 0 is the outermost.
        dim: usize,
        /// One range for each rank.
        ranges: Vec<Range<usize>>,
    },
    /// Several blocks that are stacked along a dimension, such as query, key and value of a fused tensor. Each block is
    /// cut on its own; a rank has its pieces one after the other.
    Fused {
        /// The dimension, 0 is the outermost.
        dim: usize,
        /// The blocks, which fill the dimension.
        blocks: Vec<Block>,
    },
}

impl Split {
    /// [`Split::Even`] along `dim`, in units of `unit` elements.
    pub fn even(dim: usize, unit: usize) -> Self {
        Self::Even { dim, unit }
    }

    /// [`Split::Ranges`] along `dim`, one for each rank.
    pub fn ranges(dim: usize, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        Self::Ranges { dim, ranges: ranges.into_iter().collect() }
    }

    /// [`Split::Fused`] along `dim`.
    pub fn fused(dim: usize, blocks: impl IntoIterator<Item = Block>) -> Self {
        Self::Fused { dim, blocks: blocks.into_iter().collect() }
    }

    /// The part of rank `rank` of `size` of a tensor of `shape`, or the reason why there is none.
    pub(super) fn part(&self, shape: &[usize], rank: usize, size: usize) -> Result<Part, String> {
        if rank >= size {
            return Err(format!("there is no rank {rank}"));
        }
        let len_of = |dim: usize| match shape.get(dim) {
            Some(len) => Ok(*len),
            None => Err(format!("dimension {dim} does not exist; the first dimension is 0")),
        };
        match self {
            Self::Whole => Ok(Part::Whole),
            Self::Even { dim, unit } => Ok(Part::Range { dim: *dim, range: even(len_of(*dim)?, *unit, rank, size)? }),
            Self::Ranges { dim, ranges } => {
                Ok(Part::Range { dim: *dim, range: explicit(len_of(*dim)?, ranges, rank, size)? })
            }
            Self::Fused { dim, blocks } => {
                let ranges = fused(len_of(*dim)?, blocks, rank, size)?;
                Ok(Part::Ranges { dim: *dim, ranges })
            }
        }
    }
}

/// One block of a [fused](Split::Fused) tensor.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Elements along the dimension.
    pub len: usize,
    /// How the block is cut.
    pub cut: Cut,
}

impl Block {
    /// A block of `len` elements along the dimension.
    pub fn new(len: usize, cut: Cut) -> Self {
        Self { len, cut }
    }

    /// A block that is split evenly, in units of `unit` elements.
    pub fn even(len: usize, unit: usize) -> Self {
        Self::new(len, Cut::Even { unit })
    }
}

/// How one block of a [fused](Split::Fused) tensor is cut.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Every rank has the whole block.
    Whole,
    /// As [`Split::Even`].
    Even {
        /// Elements that stay together.
        unit: usize,
    },
    /// As [`Split::Ranges`]; ranges count from the start of the block.
    Ranges(Vec<Range<usize>>),
}

/// The range of a rank, in whole units.
fn even(len: usize, unit: usize, rank: usize, size: usize) -> Result<Range<usize>, String> {
    if unit == 0 || !len.is_multiple_of(unit) {
        return Err(format!("{len} elements are not whole units of {unit}"));
    }
    let units = len / unit;
    let (each, more) = (units / size, units % size);
    let first = |rank: usize| rank * each + rank.min(more);
    Ok(first(rank) * unit..first(rank + 1) * unit)
}

fn explicit(len: usize, ranges: &[Range<usize>], rank: usize, size: usize) -> Result<Range<usize>, String> {
    if ranges.len() != size {
        return Err(format!("the rule has ranges of {} ranks", ranges.len()));
    }
    let range = ranges[rank].clone();
    if range.start > range.end || range.end > len {
        return Err(format!("the range {}..{} of rank {rank} is not inside of 0..{len}", range.start, range.end));
    }
    Ok(range)
}

fn fused(len: usize, blocks: &[Block], rank: usize, size: usize) -> Result<Vec<Range<usize>>, String> {
    let total = blocks.iter().try_fold(0usize, |sum, block| sum.checked_add(block.len));
    if total != Some(len) {
        let total = total.map_or("too many".to_owned(), |total| total.to_string());
        return Err(format!("the blocks have {total} elements, and the dimension has {len}"));
    }
    let mut start = 0;
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(blocks.len());
    for Block { len, cut } in blocks {
        let range = match cut {
            Cut::Whole => 0..*len,
            Cut::Even { unit } => even(*len, *unit, rank, size)?,
            Cut::Ranges(ranges) => explicit(*len, ranges, rank, size)?,
        };
        let range = start + range.start..start + range.end;
        start += len;
        // Neighbours are read at once.
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    Ok(ranges)
}
