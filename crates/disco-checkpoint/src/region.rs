//! Parts of tensors as boxes, and copies between parts that overlap.

use std::ops::Range;

/// A box inside of a whole tensor: the start and the extent of each dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    start: Vec<usize>,
    extent: Vec<usize>,
}

impl Region {
    /// All elements of a tensor.
    pub(crate) fn whole(shape: &[usize]) -> Self {
        Self { start: vec![0; shape.len()], extent: shape.to_vec() }
    }

    /// The elements in `range` along dimension `dim`, which the tensor has.
    pub(crate) fn along(shape: &[usize], dim: usize, range: Range<usize>) -> Self {
        let mut region = Self::whole(shape);
        region.start[dim] = range.start;
        region.extent[dim] = range.len();
        region
    }

    /// The shape of the part.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.extent
    }

    /// The elements that two regions of one tensor have in common; none without common elements.
    fn overlap(&self, other: &Self) -> Option<Self> {
        let mut both = self.clone();
        for (dim, (start, extent)) in both.start.iter_mut().zip(&mut both.extent).enumerate() {
            let end = (*start + *extent).min(other.start[dim] + other.extent[dim]);
            *start = (*start).max(other.start[dim]);
            *extent = end.checked_sub(*start).filter(|extent| *extent > 0)?;
        }
        Some(both)
    }

    /// Whether the regions have common elements.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.overlap(other).is_some()
    }

    /// The position of an element in the row-major elements of this region.
    fn position(&self, at: &[usize]) -> usize {
        let dims = at.iter().zip(&self.start).zip(&self.extent);
        dims.fold(0, |position, ((at, start), extent)| position * extent + (at - start))
    }
}

/// Copies the common elements of two regions of one tensor, row-major, with `element` bytes each. The regions have as
/// many dimensions, and the slices as many bytes as their regions.
pub(crate) fn copy((from, source): (&Region, &[u8]), (to, target): (&Region, &mut [u8]), element: usize) {
    let Some(both) = from.overlap(to) else { return };
    // The dimensions behind `inner` are whole in both regions, so that runs of `inner` are contiguous.
    let is_whole = |dim: usize| both.extent[dim] == from.extent[dim] && both.extent[dim] == to.extent[dim];
    let inner = (0..both.extent.len()).rev().find(|dim| !is_whole(*dim)).unwrap_or(0);
    let run = both.extent.iter().skip(inner).product::<usize>() * element;
    let mut at = both.start.clone();
    loop {
        let (start, end) = (from.position(&at) * element, to.position(&at) * element);
        target[end..][..run].copy_from_slice(&source[start..][..run]);
        // The next position of the dimensions before `inner`.
        let mut dim = inner;
        loop {
            let Some(outer) = dim.checked_sub(1) else { return };
            dim = outer;
            at[dim] += 1;
            if at[dim] < both.start[dim] + both.extent[dim] {
                break;
            }
            at[dim] = both.start[dim];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The elements of a region of a tensor whose elements are their positions, by the definition.
    fn part(region: &Region, shape: &[usize]) -> Vec<u8> {
        let all = Region::whole(shape);
        let count: usize = shape.iter().product();
        let inside = |position: &usize| {
            let mut rest = *position;
            let mut at = vec![0; shape.len()];
            for (at, extent) in at.iter_mut().zip(shape).rev() {
                (*at, rest) = (rest % extent, rest / extent);
            }
            assert_eq!(all.position(&at), *position);
            let dims = at.iter().zip(&region.start).zip(&region.extent);
            dims.into_iter().all(|((at, start), extent)| (*start..start + extent).contains(at))
        };
        (0..count).filter(inside).map(|position| position as u8).collect()
    }

    fn regions() -> impl Strategy<Value = (Vec<usize>, Region, Region)> {
        let shapes = proptest::collection::vec(1usize..5, 0..4);
        shapes.prop_flat_map(|shape| {
            let region = |shape: Vec<usize>| {
                let dims: Vec<_> = shape
                    .into_iter()
                    .map(|extent| (0..=extent, 0..=extent).prop_map(|(a, b)| (a.min(b), a.max(b))))
                    .collect();
                dims.prop_map(|dims| Region {
                    start: dims.iter().map(|(start, _)| *start).collect(),
                    extent: dims.iter().map(|(start, end)| end - start).collect(),
                })
            };
            (Just(shape.clone()), region(shape.clone()), region(shape))
        })
    }

    proptest! {
        #[test]
        fn copy_moves_exactly_the_common_elements((shape, from, to) in regions()) {
            const UNTOUCHED: u8 = 255;
            let source = part(&from, &shape);
            let wanted = part(&to, &shape);
            let mut target = vec![UNTOUCHED; wanted.len()];
            copy((&from, &source), (&to, &mut target), 1);
            for (copied, wanted) in target.iter().zip(&wanted) {
                let expected = if source.contains(wanted) { *wanted } else { UNTOUCHED };
                prop_assert_eq!(*copied, expected);
            }
            prop_assert_eq!(from.overlaps(&to), source.iter().any(|element| wanted.contains(element)));
        }
    }
}
